/** What runs now, in the worker of the gateway that answers. */
import { Title } from '@mantine/core';

import { query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { State } from '~/components/values';
import { displayCount } from '~/money/decimal';
import { displayDuration } from '~/time/instants';

import { useKeyName } from '../usage/choices';
import { RequestLink } from './MissExplanation';

type Running = Schema<'RunningRequest'>;
const POLL_MS = 2_000;

export function RunningRequests({ tenant }: { tenant: string }) {
  const running = query.useQuery(
    'get',
    '/admin/v1/tenants/{tenant}/running-requests',
    { params: { path: { tenant } } },
    { refetchInterval: POLL_MS },
  );
  const keyName = useKeyName(tenant);
  if (running.data === undefined || running.data.data.length === 0) return null;
  const columns: Column<Running>[] = [
    { header: 'Request', cell: (one) => <RequestLink tenant={tenant} id={one.id} /> },
    { header: 'Phase', cell: (one) => <State tone="waiting">{one.phase}</State> },
    { header: 'Model', cell: (one) => one.model },
    { header: 'Lane', cell: (one) => one.lane },
    { header: 'For', cell: (one) => displayDuration(one.elapsed_us / 1_000), numeric: true },
    { header: 'Prompt', cell: (one) => displayCount(one.prompt_tokens), numeric: true },
    { header: 'Output', cell: (one) => displayCount(one.output_tokens), numeric: true },
    { header: 'Key', cell: (one) => keyName(one.key) },
    { header: 'Replica', cell: (one) => one.replica ?? '–' },
  ];
  return (
    <section aria-label="Running now">
      <Title order={2} size="h5">
        Running now in {running.data.worker}
      </Title>
      <DataTable
        caption="Requests that run now"
        columns={columns}
        rows={running.data.data}
        rowKey={(one) => one.id}
        empty="Nothing runs."
      />
    </section>
  );
}
