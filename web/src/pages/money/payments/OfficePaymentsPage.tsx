/** Payments of all tenants, for finance: unmatched money, tasks, disputes, comparisons with the provider. */
import { Group, Stack } from '@mantine/core';
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import { useTenants } from '~/app/TenantSwitcher';
import { type Column, DataTable } from '~/components/DataTable';
import { Facts } from '~/components/Facts';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant, Money } from '~/components/values';

import { WordLink } from '../components/WordLink';
import { DISPUTE_COLUMNS, RECEIPT_COLUMNS, reminderColumns } from './columns';
import { CloseTask, ImportStatement, ReceiptActions, SendAgain } from './OfficeActions';
import { ModeNotice, providerName, ViewSelect } from './states';
import { OFFICE_VIEWS, type OfficeView, officeView } from './views';

const AT = '/admin/v1/payments';
const MOST = 100;
const route = getRouteApi('/signed-in/platform/payments');

export function OfficePaymentsPage() {
  const { show = 'unmatched' } = route.useSearch({ select: (search) => officeView({ ...search }) });
  const navigate = route.useNavigate();
  const mayDecide = may(useMe(), 'balance.write');
  const provider = query.useQuery('get', `${AT}/provider`);
  return (
    <Page
      title="Payments"
      about="Money that came in of all tenants, and what somebody has to decide."
      actions={mayDecide && <ImportStatement />}
    >
      <Stack gap="xl">
        <Loaded query={provider} what="the payment provider" height={110}>
          {(found) => (
            <Stack>
              <ModeNotice mode={found} />
              <ProviderFacts provider={found} />
            </Stack>
          )}
        </Loaded>
        <Stack>
          <Group>
            <ViewSelect views={OFFICE_VIEWS} value={show} set={(view) => void navigate({ search: { show: view } })} />
          </Group>
          <OfficeList show={show} mayDecide={mayDecide} />
        </Stack>
      </Stack>
    </Page>
  );
}

function ProviderFacts({ provider }: { provider: Schema<'ProviderObject'> }) {
  const unmatched = query.useQuery('get', `${AT}/receipts`, { params: { query: { state: 'unapplied', limit: MOST } } });
  const tasks = query.useQuery('get', `${AT}/tasks`, { params: { query: { limit: MOST } } });
  const disputes = query.useQuery('get', `${AT}/disputes`, { params: { query: { limit: MOST } } });
  const waiting = disputes.data?.data.filter(({ state }) => state === 'open' || state === 'withdrawn').length;
  const { account, livemode, key } = provider;
  const collected =
    provider.provider === null
      ? { value: 'bank transfer', about: '--stripe-file names the credentials of an account at Stripe.' }
      : { value: providerName(provider), about: `${livemode ? 'Live' : 'Test mode'}: account ${account}, key ${key}.` };
  return (
    <Facts
      label="Payments"
      facts={[
        { name: 'Collected by', ...collected },
        waits('Unmatched payments', countOf(unmatched.data), 'unmatched'),
        waits('Open tasks', countOf(tasks.data), 'tasks'),
        waits('Disputes that are not decided', waiting, 'disputes'),
      ]}
    />
  );
}

function countOf(list: { data: unknown[]; has_more: boolean } | undefined): string | undefined {
  return list && `${list.data.length}${list.has_more ? '+' : ''}`;
}

function waits(name: string, count: string | number | undefined, show: OfficeView) {
  return { name, value: count ?? '–', to: '/platform/payments', search: { show }, linkText: 'Show them' };
}

function OfficeList({ show, mayDecide }: { show: OfficeView; mayDecide: boolean }) {
  const tenants = useTenants() ?? [];
  const nameOf = (id: string): string => tenants.find((tenant) => tenant.id === id)?.name ?? id;
  const tenantColumn = {
    header: 'Tenant',
    cell: ({ tenant_id }: { tenant_id: string | null }) => {
      if (tenant_id === null) return '–';
      const tenant = nameOf(tenant_id);
      return <WordLink to={`/tenants/${encodeURIComponent(tenant)}/payments` as '/'}>{tenant}</WordLink>;
    },
  };
  const list = (after: string | undefined) => ({ query: { after, limit: 20 } });
  if (show === 'tasks') {
    const columns: Column<Schema<'TaskObject'>>[] = [
      { header: 'Since', cell: (task) => <Instant at={task.created_at} /> },
      { header: 'Kind', cell: (task) => task.kind.replaceAll('_', ' ') },
      tenantColumn,
      { header: 'What', cell: (task) => task.text },
    ];
    if (mayDecide) columns.push({ header: 'Close', cell: (task) => <CloseTask task={task} /> });
    return (
      <PagedTable
        caption="Tasks for finance"
        what="the tasks"
        columns={columns}
        empty="Nothing waits for finance."
        queryKey={['get', `${AT}/tasks`]}
        read={async (after, signal) => (await api.GET(`${AT}/tasks`, { params: list(after), signal })).data!}
      />
    );
  }
  if (show === 'disputes') {
    return (
      <PagedTable
        caption="Disputes of all tenants"
        what="the disputes"
        columns={[DISPUTE_COLUMNS[0]!, tenantColumn, ...DISPUTE_COLUMNS.slice(1)]}
        empty="No payment was disputed."
        queryKey={['get', `${AT}/disputes`]}
        read={async (after, signal) => (await api.GET(`${AT}/disputes`, { params: list(after), signal })).data!}
      />
    );
  }
  if (show === 'due') return <DueReminders nameOf={nameOf} />;
  if (show === 'dunning') {
    const columns = reminderColumns(nameOf);
    columns.splice(1, 0, tenantColumn);
    if (mayDecide) columns.push({ header: 'Again', cell: (reminder) => <SendAgain reminder={reminder} /> });
    return (
      <PagedTable
        caption="Reminders of all tenants"
        what="the reminders"
        columns={columns}
        empty="None was sent yet: --smtp-host names the mail server that they go to."
        queryKey={['get', `${AT}/reminders`]}
        read={async (after, signal) => (await api.GET(`${AT}/reminders`, { params: list(after), signal })).data!}
      />
    );
  }
  if (show === 'comparisons') {
    return (
      <PagedTable
        caption="Comparisons with the provider"
        what="the comparisons"
        columns={COMPARISONS}
        empty="There was none yet: each night our rows and the provider’s objects are compared, in both directions."
        queryKey={['get', `${AT}/reconciliations`]}
        read={async (after, signal) => (await api.GET(`${AT}/reconciliations`, { params: list(after), signal })).data!}
      />
    );
  }
  const columns: Column<Schema<'ReceiptObject'>>[] = [RECEIPT_COLUMNS[0]!, tenantColumn, ...RECEIPT_COLUMNS.slice(1)];
  const isUnmatched = show === 'unmatched';
  if (isUnmatched) columns.push({ header: 'Why', cell: (receipt) => receipt.problem ?? '–' });
  if (isUnmatched && mayDecide) {
    columns.push({
      header: 'Decide',
      cell: (receipt) => (
        <Group gap={4} wrap="nowrap">
          <ReceiptActions receipt={receipt} />
        </Group>
      ),
    });
  }
  return (
    <PagedTable
      caption={isUnmatched ? 'Unmatched payments' : 'Money that came in of all tenants'}
      what="what came in"
      columns={columns}
      empty={isUnmatched ? 'All money that came in is applied.' : 'Nothing came in yet.'}
      queryKey={['get', `${AT}/receipts`, show]}
      read={async (after, signal) => {
        const state = isUnmatched ? ('unapplied' as const) : undefined;
        return (await api.GET(`${AT}/receipts`, { params: { query: { after, limit: 20, state } }, signal })).data!;
      }}
    />
  );
}

const COMPARISONS: Column<Schema<'ReconciliationObject'>>[] = [
  { header: 'Since', cell: (run) => <Instant at={run.since} /> },
  { header: 'Until', cell: (run) => <Instant at={run.until} /> },
  { header: 'Payments', numeric: true, cell: (run) => run.payments },
  { header: 'Invoices', numeric: true, cell: (run) => run.invoices },
  { header: 'Missed events', numeric: true, cell: (run) => run.missed_events },
  {
    header: 'Differences',
    cell: (run) =>
      run.differences.length === 0
        ? 'none'
        : run.differences.map((one) => (
            <div key={`${one.what} ${one.subject}`}>
              {one.subject}: {one.detail || one.what}
            </div>
          )),
  },
];

/** What the worker would send now: the same as `turnpike payments dunning --dry-run`. */
function DueReminders({ nameOf }: { nameOf: (id: string) => string }) {
  const due = query.useQuery('get', `${AT}/due-reminders`);
  return (
    <Loaded query={due} what="the reminders">
      {({ data }) => (
        <DataTable
          caption="Reminders that are due"
          columns={[
            { header: 'Due since', cell: (one) => one.due },
            { header: 'Tenant', cell: (one) => nameOf(one.tenant_id) },
            {
              header: 'Invoice',
              cell: (one) => (
                <WordLink
                  to="/tenants/$tenant/invoices/$invoice"
                  params={{ tenant: nameOf(one.tenant_id), invoice: one.invoice_id }}
                >
                  {one.number}
                </WordLink>
              ),
            },
            { header: 'Level', numeric: true, cell: (one) => one.level },
            { header: 'To', cell: (one) => one.recipient || 'no address' },
            { header: 'To pay', numeric: true, cell: (one) => <Money amount={one.left} currency={one.currency} /> },
          ]}
          rows={data}
          rowKey={(one) => one.invoice_id}
          empty="No reminder is due."
        />
      )}
    </Loaded>
  );
}
