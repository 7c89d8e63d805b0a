/** Promises of the cache: those that are read most, those that end soon, and writes that nobody read. */
import { Text, Title } from '@mantine/core';
import type { ReactNode } from 'react';

import { api, query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { PagedTable } from '~/components/PagedTable';
import { Copied, Instant, Money } from '~/components/values';
import { displayCount } from '~/money/decimal';

type Prefix = Schema<'PrefixObject'>;
type Wasted = Schema<'WastedObject'>;

interface LeasesProps {
  tenant: string;
  only: { project?: string[]; model?: string[] };
}

const ROWS = 10;
const LEASES = '/admin/v1/tenants/{tenant}/cache/leases';

const NAME: Column<Prefix>[] = [
  {
    header: 'Prefix',
    cell: (one) => (one.labels.length > 0 ? one.labels.join(', ') : <Copied text={one.id} />),
  },
  { header: 'Project', cell: (one) => one.project ?? one.project_id },
  { header: 'Model', cell: (one) => one.model },
  { header: 'Tokens', numeric: true, cell: (one) => displayCount(one.tokens) },
  { header: 'Class', cell: (one) => one.ttl },
  { header: 'Reads', numeric: true, cell: (one) => displayCount(one.reads) },
  { header: 'Last read', cell: (one) => <Instant at={one.last_read_at} distance /> },
  { header: 'Ends', cell: (one) => <Instant at={one.expires_at} distance /> },
];

export function TopPrefixes({ tenant, only }: LeasesProps) {
  const params = { path: { tenant }, query: { project: only.project, model: only.model, limit: ROWS } };
  const found = query.useQuery('get', '/admin/v1/tenants/{tenant}/cache/prefixes', { params });
  const saving: Column<Prefix> = {
    header: 'Saving, estimated',
    numeric: true,
    cell: (one) =>
      one.saving === null ? '–' : <Money amount={one.saving} currency={one.currency ?? undefined} places={6} />,
  };
  return (
    <Part title="Prefixes that are read most" what="promised now, at most ten">
      <Loaded query={found} what="the prefixes">
        {(list) => (
          <DataTable
            caption="Promised prefixes that are read most"
            columns={[...NAME, saving]}
            rows={list.data}
            rowKey={(one) => one.id}
            empty="No prefix is promised now. A marker in a request promises the prompt up to it."
          />
        )}
      </Loaded>
      <Text size="xs" c="dimmed">
        The saving is an estimate at today’s prices in the standard lane. Only promises are counted by prefix; in which
        tier a prefix lies only its replica knows.
      </Text>
    </Part>
  );
}

export function EndingLeases({ tenant, only }: LeasesProps) {
  return (
    <Part title="Promises that are about to end" what="within five minutes, the earliest first">
      <PagedTable
        caption="Promises that are about to end"
        what="the promises that are about to end"
        columns={NAME}
        empty="No promise ends within five minutes."
        queryKey={['get', LEASES, tenant, only]}
        read={async (after, signal) => {
          const asked = { project: only.project, model: only.model, within: 300, limit: ROWS, after };
          return (await api.GET(LEASES, { params: { path: { tenant }, query: asked }, signal })).data!;
        }}
      />
    </Part>
  );
}

export function WastedWrites({ tenant, only }: LeasesProps) {
  const params = { path: { tenant }, query: { project: only.project, model: only.model, limit: ROWS } };
  const found = query.useQuery('get', '/admin/v1/tenants/{tenant}/cache/wasted', { params });
  const columns: Column<Wasted>[] = [
    { header: 'Prefix', cell: (one) => <Copied text={one.id} /> },
    { header: 'Project', cell: (one) => one.project ?? one.project_id },
    { header: 'Model', cell: (one) => one.model },
    { header: 'Tokens of its own', numeric: true, cell: (one) => displayCount(one.own_tokens) },
    { header: 'Class', cell: (one) => one.ttl },
    { header: 'Ended', cell: (one) => <Instant at={one.ended_at} distance /> },
    { header: 'By', cell: (one) => (one.cause === 'purged' ? 'a purge' : 'time') },
    {
      header: 'Paid for nothing, estimated',
      numeric: true,
      cell: (one) =>
        one.premium === null ? '–' : <Money amount={one.premium} currency={one.currency ?? undefined} places={6} />,
    },
  ];
  return (
    <Part title="Writes that nobody read" what="of the last day, at most ten">
      <Loaded query={found} what="the writes that nobody read">
        {(list) => (
          <DataTable
            caption="Writes that nobody read"
            columns={columns}
            rows={list.data}
            rowKey={(one) => one.id}
            empty="Every promise that ended in the last day was read."
          />
        )}
      </Loaded>
    </Part>
  );
}

function Part({ title, what, children }: { title: string; what: string; children: ReactNode }) {
  return (
    <section aria-label={title}>
      <Title order={2}>{title}</Title>
      <Text size="sm" c="dimmed">
        {what}
      </Text>
      {children}
    </section>
  );
}
