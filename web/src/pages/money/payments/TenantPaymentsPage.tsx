/** How a tenant pays: its card, money in advance and what became of it, what came in, disputes. */
import { Group, Stack, Title } from '@mantine/core';
import { getRouteApi, useNavigate } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Facts } from '~/components/Facts';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant, Money } from '~/components/values';

import { DISPUTE_COLUMNS, RECEIPT_COLUMNS, reminderColumns } from './columns';
import { automaticState, ModeNotice, ProviderLink, providerName, topUpState, ViewSelect } from './states';
import { AutomaticAction, ReminderAction, RefundTopUp, TenantActions } from './TenantActions';
import { TENANT_VIEWS, type TenantView, tenantView } from './views';

type Connection = Schema<'PaymentConnectionObject'>;
type Automatic = Schema<'AutoTopUpObject'>;
type TopUp = Schema<'TopUpObject'>;

const AT = '/admin/v1/tenants/{tenant}';
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/payments');
const COLLECTION = { charge: 'the saved card is charged', send: 'on a page that is sent', none: 'by bank transfer' };

export function TenantPaymentsPage() {
  const { tenant } = tenantRoute.useParams();
  const { id } = tenantRoute.useLoaderData();
  const { show = 'top-ups' } = route.useSearch({ select: (search) => tenantView({ ...search }) });
  const navigate = useNavigate();
  const me = useMe();
  const mayPay = may(me, 'payments.write', id);
  const params = { path: { tenant } };
  const connection = query.useQuery('get', `${AT}/payment-connection`, { params });
  const automatic = query.useQuery('get', `${AT}/auto-top-up`, { params });
  const isConnected = connection.data?.connected === true;
  return (
    <Page
      title="Payments"
      about="How the tenant pays: its card, money in advance, and what came in."
      actions={
        mayPay &&
        connection.data && (
          <>
            <TenantActions tenant={tenant} connection={connection.data} />
            <ReminderAction tenant={tenant} />
            {isConnected && automatic.data && <AutomaticAction tenant={tenant} automatic={automatic.data} />}
          </>
        )
      }
    >
      <Stack gap="xl">
        <Loaded query={connection} what="the connection" height={110}>
          {(found) => (
            <Stack>
              <ModeNotice mode={found} />
              <ConnectionFacts connection={found} />
            </Stack>
          )}
        </Loaded>
        <section aria-labelledby="automatic">
          <Title order={2} id="automatic" mb="xs">
            Automatic top-up
          </Title>
          <Loaded query={automatic} what="the automatic top-up" height={90}>
            {(found) => <AutomaticFacts automatic={found} />}
          </Loaded>
        </section>
        <Stack>
          <Group>
            <ViewSelect
              views={TENANT_VIEWS}
              value={show}
              set={(view) =>
                void navigate({ to: '/tenants/$tenant/payments', params: { tenant }, search: { show: view } })
              }
            />
          </Group>
          <TenantList tenant={tenant} show={show} mayRefund={may(me, 'balance.write', id)} />
        </Stack>
      </Stack>
    </Page>
  );
}

function ConnectionFacts({ connection }: { connection: Connection }) {
  if (connection.provider === null) {
    return (
      <Facts
        label="How the tenant pays"
        facts={[
          {
            name: 'Collected by',
            value: 'bank transfer',
            about: 'There is no payment provider: --stripe-file names the credentials of an account.',
          },
        ]}
      />
    );
  }
  return (
    <Facts
      label="How the tenant pays"
      facts={[
        {
          name: 'Collected by',
          value: providerName(connection),
          about: connection.livemode ? 'Live: real money moves.' : 'Test mode: no money moves.',
        },
        {
          name: 'State',
          value: connection.ready ? 'connected' : connection.connected ? 'is being connected' : 'not connected',
          about: connection.connected ? undefined : 'Connect the tenant to collect by card.',
        },
        { name: 'Card', value: connection.card ?? 'none', about: 'The provider keeps it; here are its last digits.' },
        { name: 'Invoices are paid', value: COLLECTION[connection.collection] },
      ]}
    />
  );
}

function AutomaticFacts({ automatic }: { automatic: Automatic }) {
  const { currency } = automatic;
  const facts = [
    {
      name: 'State',
      value: automaticState(automatic.state),
      about:
        automatic.reason ??
        (automatic.state === 'off' ? 'The card is charged by nobody but people.' : 'It is charged by itself.'),
    },
  ];
  if (automatic.state === 'off' && automatic.amount === '0.00') return <Facts label="Automatic top-up" facts={facts} />;
  return (
    <Facts
      label="Automatic top-up"
      facts={[
        ...facts,
        { name: 'When less is left than', value: <Money amount={automatic.threshold} currency={currency} /> },
        { name: 'The card is charged', value: <Money amount={automatic.amount} currency={currency} /> },
        {
          name: 'Declines in a row',
          value: automatic.failures,
          about:
            automatic.next_at === null ? (
              'After a decline it is tried again in 1, 3 and 7 days.'
            ) : (
              <>
                Tried again <Instant at={automatic.next_at} />
              </>
            ),
        },
      ]}
    />
  );
}

function topUpColumns(tenant: string, mayRefund: boolean): Column<TopUp>[] {
  return [
    { header: 'Asked for', cell: (topUp) => <Instant at={topUp.created_at} /> },
    { header: 'How', cell: (topUp) => (topUp.kind === 'checkout' ? 'on a page' : 'saved card, by itself') },
    { header: 'Amount', numeric: true, cell: (topUp) => <Money amount={topUp.amount} currency={topUp.currency} /> },
    { header: 'Credit', numeric: true, cell: (topUp) => <Money amount={topUp.credit} currency={topUp.currency} /> },
    { header: 'State', cell: (topUp) => topUpState(topUp.state) },
    { header: 'Why', cell: (topUp) => (topUp.code ?? '–').replaceAll('_', ' ') },
    {
      header: 'Page',
      cell: (topUp) => (topUp.url === null ? '–' : <ProviderLink url={topUp.url}>Pay now</ProviderLink>),
    },
    ...(mayRefund
      ? [
          {
            header: 'Refund',
            cell: (topUp: TopUp) => topUp.state === 'granted' && <RefundTopUp tenant={tenant} topUp={topUp} />,
          },
        ]
      : []),
  ];
}

function TenantList({ tenant, show, mayRefund }: { tenant: string; show: TenantView; mayRefund: boolean }) {
  const list = (after: string | undefined) => ({ path: { tenant }, query: { after, limit: 20 } });
  if (show === 'receipts') {
    return (
      <PagedTable
        caption={`Money that came in from ${tenant}`}
        what="what came in"
        columns={RECEIPT_COLUMNS}
        empty="Nothing came in yet."
        queryKey={['get', `${AT}/cash-receipts`, tenant]}
        read={async (after, signal) => (await api.GET(`${AT}/cash-receipts`, { params: list(after), signal })).data!}
      />
    );
  }
  if (show === 'reminders') {
    return (
      <PagedTable
        caption={`Reminders of ${tenant}`}
        what="the reminders"
        columns={reminderColumns(() => tenant)}
        empty="No reminder was sent."
        queryKey={['get', `${AT}/payment-reminders`, tenant]}
        read={async (after, signal) =>
          (await api.GET(`${AT}/payment-reminders`, { params: list(after), signal })).data!
        }
      />
    );
  }
  if (show === 'disputes') {
    return (
      <PagedTable
        caption={`Disputes of ${tenant}`}
        what="the disputes"
        columns={DISPUTE_COLUMNS}
        empty="No payment was disputed."
        queryKey={['get', `${AT}/disputes`, tenant]}
        read={async (after, signal) => (await api.GET(`${AT}/disputes`, { params: list(after), signal })).data!}
      />
    );
  }
  return (
    <PagedTable
      caption={`Top-ups of ${tenant}`}
      what="the top-ups"
      columns={topUpColumns(tenant, mayRefund)}
      empty="Nothing was asked for in advance yet."
      queryKey={['get', `${AT}/top-ups`, tenant]}
      read={async (after, signal) => (await api.GET(`${AT}/top-ups`, { params: list(after), signal })).data!}
    />
  );
}
