/** Billing periods: which are closed, what the others wait for, and closing them. */
import { List } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';

import { may, useMe } from '~/access/rights';
import { api, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Copied, Instant, State } from '~/components/values';

import { ActionDialog } from '../components/ActionDialog';
import { WordLink } from '../components/WordLink';

type Period = Schema<'PeriodObject'> & { id: string };

const PATH = '/admin/v1/periods';
const TONES = { open: 'neutral', closing: 'waiting', closed: 'good' } as const;

export function PeriodsPage() {
  const mayClose = may(useMe(), 'periods.write');
  const columns: Column<Period>[] = [
    {
      header: 'Month',
      cell: ({ period }) => (
        <WordLink to="/platform/invoices" search={{ period }}>
          {period}
        </WordLink>
      ),
    },
    { header: 'State', cell: ({ state }) => <State tone={TONES[state]}>{state}</State> },
    { header: 'Ends', cell: ({ ends_at }) => <Instant at={ends_at} /> },
    { header: 'Closed', cell: ({ closed_at }) => <Instant at={closed_at} /> },
    { header: 'Waits for', cell: ({ waits_for }) => <WaitsFor reasons={waits_for} /> },
    { header: 'Root of its chains', cell: ({ root }) => root !== null && <Copied text={root} label="the root" /> },
  ];
  if (mayClose) {
    columns.push({ header: 'Close', cell: (period) => period.state === 'closing' && <Close period={period.period} /> });
  }
  return (
    <Page
      title="Periods"
      about="A month closes once all its usage has arrived; the worker does so by itself. What is closed never changes."
    >
      <PagedTable
        caption="Billing periods"
        what="the periods"
        columns={columns}
        empty="There are no periods yet: the first begins with the first request."
        queryKey={['get', PATH]}
        read={async (after, signal) => {
          const page = (await api.GET(PATH, { params: { query: { after, limit: 24 } }, signal })).data!;
          return { ...page, data: page.data.map((period) => ({ ...period, id: period.period })) };
        }}
      />
    </Page>
  );
}

function WaitsFor({ reasons }: { reasons: readonly string[] }) {
  if (reasons.length === 0) return <>nothing</>;
  return (
    <List size="sm">
      {reasons.map((reason) => (
        <List.Item key={reason}>{reason}</List.Item>
      ))}
    </List>
  );
}

function Close({ period }: { period: string }) {
  const queries = useQueryClient();
  const close = async (dryRun: boolean) =>
    (await api.POST(`${PATH}/{period}/close`, { params: { path: { period } }, body: { dry_run: dryRun } })).data!;
  return (
    <ActionDialog
      label={`Close ${period}`}
      title={`Close ${period}`}
      about="Late usage then goes to later months. This cannot be undone."
      action="Close"
      danger
      size="xs"
      check={async () => `It can be closed: it would be ${(await close(true)).state}.`}
      run={() => close(false)}
      done={`${period} was closed.`}
      onDone={() => void queries.invalidateQueries({ queryKey: ['get', PATH] })}
    />
  );
}
