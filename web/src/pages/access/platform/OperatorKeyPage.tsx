/** One operator's key. */
import { Badge, Group } from '@mantine/core';
import { getRouteApi, Link } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { query } from '~/api/client';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Copied, Instant } from '~/components/values';

import { Details } from '../Details';
import { nameOf } from '../keys/fields';
import { KeyActions } from '../keys/KeyActions';
import { KeyState } from '../keys/KeysPage';

const route = getRouteApi('/signed-in/platform/operator-keys/$key');

export function OperatorKeyPage() {
  const { key } = route.useParams();
  const found = query.useQuery('get', '/admin/v1/operator-keys/{key}', { params: { path: { key } } });
  const [now] = useState(() => Date.now());
  const mayChange = may(useMe(), 'platform.write') && found.data !== undefined && found.data.state !== 'revoked';
  return (
    <Page
      title={found.data === undefined ? 'Operator key' : `Operator key of ${nameOf(found.data)}`}
      about={<Link to="/platform/operator-keys">All operator keys</Link>}
      actions={mayChange && <KeyActions apiKey={found.data!} />}
    >
      <Loaded query={found} what="the key" height={240}>
        {(data) => (
          <Details
            label="The key"
            fields={[
              ['State', <KeyState key="state" apiKey={data} now={now} />],
              ['Id', <Copied key="id" text={data.id} label="the key's id" />],
              ['Role', data.role],
              [
                'May',
                <Group key="may" gap={4}>
                  {data.permissions.map((one) => (
                    <Badge key={one} variant="default" tt="none" radius="sm" fw={400}>
                      {one}
                    </Badge>
                  ))}
                </Group>,
              ],
              ['Addresses', data.networks === null ? 'any' : data.networks.join(', ')],
              ['Ends', data.expires_at === null ? 'when it is revoked' : <Instant key="ends" at={data.expires_at} />],
              ['Created', <Instant key="created" at={data.created_at} />],
              ['Last used', data.last_used_at === null ? 'never' : <Instant key="used" at={data.last_used_at} />],
              ['Rotated', data.rotated_at !== null && <Instant key="rotated" at={data.rotated_at} />],
              ['Old secret ends', data.old_secret_until !== null && <Instant key="old" at={data.old_secret_until} />],
              ['Revoked', data.revoked_at !== null && <Instant key="revoked" at={data.revoked_at} />],
            ]}
          />
        )}
      </Loaded>
    </Page>
  );
}
