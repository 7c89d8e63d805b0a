/** The batches of a tenant's projects, in both dialects, the newest first: how far each is, and what it cost until now. */
import { Code, Text } from '@mantine/core';
import { getRouteApi, Link } from '@tanstack/react-router';

import { api } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant, State } from '~/components/values';

import type { BatchFilters } from './filters';
import { Cost, Filters, listOf, ProgressBar } from './parts';
import { type Batch, runs, toneOf } from './progress';

const PATH = '/admin/v1/tenants/{tenant}/batches';
const route = getRouteApi('/signed-in/tenants/$tenant/batches');
const OPTIONS = [
  { value: 'running', label: 'running' },
  { value: 'ended', label: 'ended' },
];

export function BatchesPage() {
  const { tenant } = route.useParams();
  const project = route.useSearch({ select: (search) => search.project });
  const state = route.useSearch({ select: (search) => search.state });
  const navigate = route.useNavigate();
  const filtered = project !== undefined || state !== undefined;
  return (
    <Page title="Batches" about="Many requests at once, within 24 hours, on the batch lane and at its prices.">
      <Filters
        key={project}
        project={project}
        label="State"
        options={OPTIONS}
        chosen={state}
        apply={(one, chosen) => void navigate({ search: { project: one, state: chosen as BatchFilters['state'] } })}
      />
      <PagedTable
        caption={`Batches of ${tenant}`}
        what="the batches"
        columns={columnsOf(tenant)}
        empty={
          filtered ? (
            'No batch fits these filters.'
          ) : (
            <Text c="dimmed">
              There are none yet. Order one by <Code>POST /v1/batches</Code> or <Code>POST /v1/messages/batches</Code>.
            </Text>
          )
        }
        queryKey={['get', PATH, tenant, project, state]}
        read={async (after, signal) => {
          const params = { path: { tenant }, query: { project: listOf(project), state, after, limit: 20 } };
          return (await api.GET(PATH, { params, signal })).data!;
        }}
      />
    </Page>
  );
}

function columnsOf(tenant: string): Column<Batch>[] {
  return [
    {
      header: 'Batch',
      cell: (batch) => (
        <Link to="/tenants/$tenant/batches/$batch" params={{ tenant, batch: batch.id }} className="wraps">
          {batch.id}
        </Link>
      ),
    },
    {
      header: 'State',
      cell: (batch) => <State tone={toneOf(batch.status)}>{batch.status.replaceAll('_', ' ')}</State>,
    },
    { header: 'Progress', cell: (batch) => <ProgressBar batch={batch} /> },
    { header: 'Cost so far', numeric: true, cell: (batch) => <Cost batch={batch} /> },
    { header: 'Project', cell: (batch) => batch.project ?? batch.project_id },
    { header: 'Asks', cell: (batch) => batch.endpoint },
    { header: 'Lane', cell: (batch) => batch.lane },
    { header: 'Ordered', cell: (batch) => <Instant at={batch.created_at} /> },
    { header: 'Expires', cell: (batch) => (runs(batch) ? <Instant at={batch.expires_at} distance /> : '–') },
  ];
}
