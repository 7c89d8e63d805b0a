/** One key: what it allows, and changing, rotating and revoking it. */
import { Badge, Group, Stack } from '@mantine/core';
import { useInterval } from '@mantine/hooks';
import { getRouteApi, Link } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { query } from '~/api/client';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Copied, Instant } from '~/components/values';

import { Details } from '../Details';
import { LimitsSection } from '../limits/LimitsSection';
import { useProjects } from '../useProjects';
import { useMonthCosts } from './cost';
import { displayLeft, type Key, nameOf } from './fields';
import { KeyActions } from './KeyActions';
import { Cost, KeyState } from './KeysPage';
import { KEY_PATH } from './path';

const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/keys/$key');

interface KeyProps {
  apiKey: Key;
  tenant: string;
  tenantId: string;
}

export function KeyPage() {
  const { tenant, key } = route.useParams();
  const { id } = tenantRoute.useLoaderData();
  const found = query.useQuery('get', KEY_PATH, { params: { path: { tenant, key } } });
  const me = useMe();
  const project = found.data?.project_id ?? undefined;
  const mayChange = found.data !== undefined && found.data.state !== 'revoked' && may(me, 'keys.write', id, project);
  return (
    <Page
      title={found.data === undefined ? 'Key' : nameOf(found.data)}
      about={
        <Link to="/tenants/$tenant/keys" params={{ tenant }}>
          All keys
        </Link>
      }
      actions={mayChange && <KeyActions apiKey={found.data!} tenant={tenant} tenantId={id} />}
    >
      <Loaded query={found} what="the key" height={300}>
        {(data) => (
          <Stack>
            <KeyDetails apiKey={data} tenant={tenant} tenantId={id} />
            {data.project_id !== null && may(me, 'limits.read', id, project) && (
              <LimitsSection
                at={{ scope: 'key', id: data.id }}
                project={data.project_id}
                mayChange={data.state === 'active' && may(me, 'limits.write', id, project)}
              />
            )}
          </Stack>
        )}
      </Loaded>
    </Page>
  );
}

function KeyDetails({ apiKey, tenant, tenantId }: KeyProps) {
  const projects = useProjects(tenant);
  const mayUsage = may(useMe(), 'usage.read', tenantId, apiKey.project_id ?? undefined);
  const costs = useMonthCosts(tenant, mayUsage);
  const [now, setNow] = useState(() => Date.now());
  useInterval(() => setNow(Date.now()), 1_000, { autoInvoke: apiKey.old_secret_until !== null });
  const project = projects.find((one) => one.id === apiKey.project_id)?.name;
  const list = (values: string[] | null): string => (values === null ? 'all' : values.join(', ') || 'none');
  const overlap = apiKey.old_secret_until;
  const filter = { key: apiKey.id } as never;
  return (
    <Details
      label="The key"
      fields={[
        ['State', <KeyState key="state" apiKey={apiKey} now={now} />],
        ['Id', <Copied key="id" text={apiKey.id} label="the key's id" />],
        ['For', apiKey.project_id === null ? `administration, as ${apiKey.role}` : `the project ${project ?? '…'}`],
        [
          'May',
          <Group key="may" gap={4}>
            {apiKey.permissions.map((one) => (
              <Badge key={one} variant="default" tt="none" radius="sm" fw={400}>
                {one}
              </Badge>
            ))}
          </Group>,
        ],
        ['Models', apiKey.kind === 'project' && list(apiKey.models)],
        ['Lanes', apiKey.kind === 'project' && list(apiKey.lanes)],
        ['Addresses', apiKey.networks === null ? 'any' : list(apiKey.networks)],
        ['Ends', apiKey.expires_at === null ? 'when it is revoked' : <Instant key="ends" at={apiKey.expires_at} />],
        ['Created', <Instant key="created" at={apiKey.created_at} />],
        ['Last used', apiKey.last_used_at === null ? 'never' : <Instant key="used" at={apiKey.last_used_at} />],
        ['Secret', apiKey.stands_in && 'none: it stands for a person who asks in the console, so it cannot be rotated'],
        ['Rotated', apiKey.rotated_at !== null && <Instant key="rotated" at={apiKey.rotated_at} />],
        [
          'Old secret',
          overlap !== null && (
            <span key="old">
              {new Date(overlap).getTime() > now
                ? `valid for another ${displayLeft(new Date(overlap).getTime() - now)}`
                : 'ended'}
              {apiKey.old_secret_used_at !== null && (
                <>
                  ; last used <Instant at={apiKey.old_secret_used_at} />
                </>
              )}
            </span>
          ),
        ],
        [
          'Revoked',
          apiKey.revoked_at !== null && (
            <span key="revoked">
              <Instant at={apiKey.revoked_at} />
              {apiKey.leaked && ', as leaked'}
            </span>
          ),
        ],
        ['Cost this month', costs !== undefined && <Cost key="cost" cost={costs.get(apiKey.id)} />],
        [
          'See',
          mayUsage && (
            <Group key="see" gap="md">
              <Link to={`/tenants/${tenant}/usage` as '/'} search={filter}>
                Its usage
              </Link>
              <Link to={`/tenants/${tenant}/requests` as '/'} search={filter}>
                Its requests
              </Link>
            </Group>
          ),
        ],
      ]}
    />
  );
}
