/** What a tenant has: its balance, what was put in and what is left of it, and its account statement. */
import { Anchor, Group, Stack, Title } from '@mantine/core';
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Facts } from '~/components/Facts';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant, Money } from '~/components/values';
import { displayDay } from '~/time/instants';

import { WordLink } from '../components/WordLink';
import { MoneyActions } from './MoneyActions';
import { StatementSection } from './StatementSection';

type Balance = Schema<'BalanceObject'>;
type Grant = Schema<'GrantObject'>;

const GRANTS = '/admin/v1/tenants/{tenant}/grants';
const route = getRouteApi('/signed-in/tenants/$tenant');

export function BalancePage() {
  const { tenant } = route.useParams();
  const { id } = route.useLoaderData();
  const mayWrite = may(useMe(), 'balance.write', id);
  const balance = query.useQuery('get', '/admin/v1/tenants/{tenant}/balance', { params: { path: { tenant } } });
  return (
    <Page
      title="Balance"
      about="What may still be used, what requests in flight hold, and where every change came from."
      actions={mayWrite && balance.data && <MoneyActions tenant={tenant} balance={balance.data} />}
    >
      <Stack gap="xl">
        <Loaded query={balance} what="the balance" height={120}>
          {(found) => <BalanceFacts tenant={tenant} balance={found} asOf={balance.dataUpdatedAt} />}
        </Loaded>
        <Grants tenant={tenant} />
        <StatementSection tenant={tenant} />
      </Stack>
    </Page>
  );
}

function BalanceFacts({ tenant, balance, asOf }: { tenant: string; balance: Balance; asOf: number }) {
  const amount = (value: string) => <Money amount={value} currency={balance.currency} />;
  return (
    <>
      <Facts
        label="Balance"
        facts={[
          { name: 'Available', value: amount(balance.available), about: 'May still be reserved.' },
          { name: 'Held', value: amount(balance.held), about: 'By requests that have not ended.' },
          { name: 'Credit line', value: amount(balance.credit_line), about: 'May be used before it is paid.' },
          { name: 'Restricted', value: amount(balance.restricted), about: 'For one model or project only.' },
          {
            name: 'Put in',
            value: (
              <Anchor href="#grants" inherit>
                {amount(balance.credit)}
              </Anchor>
            ),
          },
          {
            name: 'Used',
            value: <WordLink to={`/tenants/${tenant}/usage` as '/'}>{amount(balance.used)}</WordLink>,
          },
          { name: 'Prepaid, left', value: amount(balance.prepaid) },
          { name: 'Promotional, left', value: amount(balance.promo) },
          { name: 'Owed', value: amount(balance.receivable), about: 'Used on the credit line.' },
          { name: 'Overdrawn', value: amount(balance.overdraft) },
        ]}
      />
      <Group mt="xs" fz="xs" c="dimmed">
        <span>
          Complete until <Instant at={new Date(asOf).toISOString()} />: with every request that was settled by then.
        </span>
      </Group>
    </>
  );
}

const COLUMNS: Column<Grant>[] = [
  { header: 'Put in', cell: (grant) => <span style={{ whiteSpace: 'nowrap' }}>{displayDay(grant.created_at)}</span> },
  { header: 'Kind', cell: (grant) => (grant.kind === 'paid' ? 'payment' : 'grant') },
  { header: 'Reason', cell: (grant) => grant.reason },
  { header: 'For', cell: (grant) => grant.model ?? grant.project_id ?? 'everything' },
  { header: 'Amount', numeric: true, cell: (grant) => <Money amount={grant.amount} currency={grant.currency} /> },
  { header: 'Left', numeric: true, cell: (grant) => <Money amount={grant.remaining} currency={grant.currency} /> },
  { header: 'Held', numeric: true, cell: (grant) => <Money amount={grant.held} /> },
  { header: 'Used', numeric: true, cell: (grant) => <Money amount={grant.used} /> },
  { header: 'Refunded or expired', numeric: true, cell: (grant) => <Money amount={grant.gone} /> },
  { header: 'Expires', cell: (grant) => (grant.expires_at === null ? 'never' : <Instant at={grant.expires_at} />) },
  { header: 'Priority', numeric: true, cell: (grant) => grant.priority },
];

function Grants({ tenant }: { tenant: string }) {
  return (
    <section aria-labelledby="grants">
      <Title order={2} id="grants" mb="xs">
        Payments and grants
      </Title>
      <PagedTable
        caption={`Payments and grants of ${tenant}`}
        what="payments and grants"
        columns={COLUMNS}
        empty="Nothing was put in yet."
        queryKey={['get', GRANTS, tenant]}
        read={async (after, signal) => {
          const params = { path: { tenant }, query: { after, limit: 20 } };
          return (await api.GET(GRANTS, { params, signal })).data!;
        }}
      />
    </section>
  );
}
