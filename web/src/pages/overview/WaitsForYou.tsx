/** What waits for the decision of who looks at it, on the pages on which operators land: approved without leaving them. */
import { Group, Stack, Text } from '@mantine/core';

import { may, useMe } from '~/access/rights';
import { query } from '~/api/client';
import { Remark } from '~/components/Remark';
import { Decisions, mayDecide, useTenantName } from '~/pages/access/approvals/decisions';
import { type Change, titleOf } from '~/pages/access/approvals/words';

const MOST = 5;

/** Nothing where nothing waits, and for who may not decide. */
export function WaitsForYou() {
  const me = useMe();
  const params = { query: { state: 'pending' as const, limit: 50 } };
  const found = query.useQuery('get', '/admin/v1/approvals', { params }, { enabled: may(me, 'approvals.decide') });
  const mine = (found.data?.data ?? []).filter((change) => mayDecide(me, change));
  if (mine.length === 0) return null;
  return (
    <Remark title={mine.length === 1 ? 'One change waits for you' : `${mine.length} changes wait for you`}>
      <Stack gap="xs" mt="xs">
        {mine.slice(0, MOST).map((change) => (
          <Waiting key={change.id} change={change} />
        ))}
        {mine.length > MOST && <Text size="sm">The approvals have the others.</Text>}
      </Stack>
    </Remark>
  );
}

function Waiting({ change }: { change: Change }) {
  const title = titleOf(change, useTenantName(change.tenant_id));
  return (
    <Group gap="sm" justify="space-between">
      <span>
        {title}, proposed by {change.author}
      </span>
      <Decisions change={change} compact />
    </Group>
  );
}
