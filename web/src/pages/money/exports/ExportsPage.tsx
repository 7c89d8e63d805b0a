/** Exports: files of usage, costs and books, made by a worker; each with its rows, sums and SHA-256. */
import { Button, Code, Stack, Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api, download, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Copied, Instant, Money, State } from '~/components/values';
import { displayCount } from '~/money/decimal';
import { monthOf, useToday } from '~/time/days';

import { ActionDialog } from '../components/ActionDialog';

type Export = Schema<'ExportObject'>;

const PATH = '/admin/v1/tenants/{tenant}/exports';
const route = getRouteApi('/signed-in/tenants/$tenant');

const DATASETS = [
  { value: 'usage', label: 'usage: each request and correction' },
  { value: 'costs', label: 'costs: by day, project, model and meter' },
  { value: 'invoices', label: 'invoices: documents and their lines' },
  { value: 'journal', label: 'journal: postings for bookkeeping' },
  { value: 'general-ledger', label: 'general ledger: bookings in whole coins' },
  { value: 'revenue', label: 'revenue: what the month earned, by model' },
  { value: 'deferred', label: 'deferred: what is owed in service' },
  { value: 'ageing', label: 'ageing: what is not paid, by days overdue' },
  { value: 'account', label: 'account: statements of account, from opening to closing balance' },
  { value: 'focus', label: 'FOCUS: cost and usage' },
  { value: 'focus-invoices', label: 'FOCUS: invoice detail' },
  { value: 'focus-periods', label: 'FOCUS: billing period' },
  { value: 'focus-commitments', label: 'FOCUS: contract commitments' },
];
const FORMATS = ['csv', 'jsonl', 'parquet', 'xlsx'];
const TONES: Record<string, 'good' | 'waiting' | 'bad' | 'neutral'> = {
  queued: 'waiting',
  running: 'waiting',
  done: 'good',
  failed: 'bad',
  expired: 'neutral',
};

/** What a finished export's manifest has, as far as it is shown. */
interface Manifest {
  closed: boolean;
  sums: Record<string, Record<string, string>>;
  sha256: string;
}

export function ExportsPage() {
  const { tenant } = route.useParams();
  const { id } = route.useLoaderData();
  const me = useMe();
  const columns: Column<Export>[] = [
    { header: 'Dataset', cell: (job) => job.dataset },
    { header: 'Period', cell: (job) => job.period },
    { header: 'Format', cell: (job) => job.format },
    { header: 'State', cell: (job) => <JobState job={job} /> },
    { header: 'Rows', numeric: true, cell: (job) => displayCount(job.rows) },
    { header: 'Sums', cell: (job) => <Sums manifest={manifestOf(job)} /> },
    { header: 'SHA-256', cell: (job) => <Sha256 manifest={manifestOf(job)} /> },
    { header: 'Ordered', cell: (job) => <Instant at={instant(job.created_at)} /> },
    { header: 'Kept until', cell: (job) => <Instant at={instant(job.expires_at)} /> },
    { header: 'File', cell: (job) => job.status === 'done' && <Get tenant={tenant} job={job} /> },
  ];
  return (
    <Page
      title="Exports"
      about="Files of a month. Those of a closed month are the same bytes whenever they are made."
      actions={may(me, 'exports.write', id) && <NewExport tenant={tenant} />}
    >
      <PagedTable
        caption={`Exports of ${tenant}`}
        what="the exports"
        columns={columns}
        empty={
          <Text c="dimmed">
            There are none yet. Order one here, or by <Code>POST /v1/exports</Code>.
          </Text>
        }
        queryKey={['get', PATH, tenant]}
        read={async (after, signal) => {
          const params = { path: { tenant }, query: { after, limit: 20 } };
          return (await api.GET(PATH, { params, signal })).data!;
        }}
      />
    </Page>
  );
}

function JobState({ job }: { job: Export }) {
  return (
    <Stack gap={2} align="flex-start">
      <State tone={TONES[job.status] ?? 'neutral'}>{job.status}</State>
      {job.status === 'queued' && (
        <Text size="xs">{job.ahead === 0 ? 'The next one.' : `After ${displayCount(job.ahead ?? 0)} others.`}</Text>
      )}
      {job.error !== null && <Text size="xs">{job.error}</Text>}
      {manifestOf(job)?.closed === false && <Text size="xs">The month was still open: not final.</Text>}
    </Stack>
  );
}

function manifestOf(job: Export): Manifest | undefined {
  return (job.manifest as unknown as Manifest | null) ?? undefined;
}

function Sums({ manifest }: { manifest?: Manifest }) {
  if (manifest === undefined) return null;
  return (
    <>
      {Object.entries(manifest.sums).flatMap(([column, amounts]) =>
        Object.entries(amounts).map(([currency, amount]) => (
          <Text key={`${column} ${currency}`} size="sm" style={{ whiteSpace: 'nowrap' }}>
            {column}: <Money amount={amount} currency={currency} />
          </Text>
        )),
      )}
    </>
  );
}

function Sha256({ manifest }: { manifest?: Manifest }) {
  if (manifest === undefined) return null;
  return <Copied text={manifest.sha256} label="the SHA-256" />;
}

function Get({ tenant, job }: { tenant: string; job: Export }) {
  const path = `/admin/v1/tenants/${encodeURIComponent(tenant)}/exports/${job.id}/content`;
  return (
    <Button
      size="xs"
      variant="default"
      aria-label={`Download ${job.dataset} of ${job.period} as ${job.format}`}
      onClick={() => void download(path)}
    >
      Download
    </Button>
  );
}

function NewExport({ tenant }: { tenant: string }) {
  const queries = useQueryClient();
  return (
    <ActionDialog
      label="New export"
      title="New export"
      fields={[
        { name: 'dataset', label: 'Dataset', kind: 'select', options: DATASETS, initial: 'usage' },
        { name: 'period', label: 'Month', kind: 'month', required: true, initial: monthOf(useToday(), 1) },
        { name: 'format', label: 'Format', kind: 'select', options: FORMATS, initial: 'csv' },
      ]}
      action="Order"
      variant="filled"
      run={async (values) => {
        const body = { dataset: values.dataset!, period: values.period!, format: values.format! };
        return (await api.POST(PATH, { params: { path: { tenant } }, body })).data!;
      }}
      done="The export was ordered; its file is here once a worker has made it."
      onDone={() => void queries.invalidateQueries({ queryKey: ['get', PATH] })}
    />
  );
}

function instant(seconds: number | null): string | null {
  return seconds === null ? null : new Date(seconds * 1000).toISOString();
}
