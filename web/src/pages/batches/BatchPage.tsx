/** One batch: how far it is, what it cost, why it failed, the lines that failed, its results, and its end. */
import { Alert, Button, Code, Group, List, Stack, Text, Title } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { getRouteApi, Link } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, query } from '~/api/client';
import { DataTable } from '~/components/DataTable';
import { type Fact, Facts } from '~/components/Facts';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Copied, Instant, State } from '~/components/values';
import { displayCount } from '~/money/decimal';
import { ActionDialog } from '~/pages/money/components/ActionDialog';
import { PageOf } from '~/pages/money/components/PageOf';

import { Cost, Download, ProgressBar } from './parts';
import { type Batch, runs, toneOf } from './progress';

const AT = '/admin/v1/tenants/{tenant}/batches/{batch}';
const FAILED_SHOWN = 100;
const AGAIN_MS = 3_000;
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/batches/$batch');

export function BatchPage() {
  const { tenant, batch } = route.useParams();
  const found = query.useQuery(
    'get',
    AT,
    { params: { path: { tenant, batch } } },
    { refetchInterval: ({ state }) => (state.data !== undefined && runs(state.data) ? AGAIN_MS : false) },
  );
  return (
    <PageOf query={found} title="Batch">
      {(shown) => <BatchShown tenant={tenant} batch={shown} />}
    </PageOf>
  );
}

function BatchShown({ tenant, batch }: { tenant: string; batch: Batch }) {
  const { id } = tenantRoute.useLoaderData();
  const me = useMe();
  const mayRead = may(me, 'content.read', id, batch.project_id);
  const notAnswered = batch.counts.failed + batch.counts.cancelled + batch.counts.expired;
  return (
    <Page
      title="Batch"
      about={
        <Link to="/tenants/$tenant/batches" params={{ tenant }}>
          All batches of {tenant}
        </Link>
      }
      actions={
        may(me, 'inference', id, batch.project_id) &&
        ['validating', 'in_progress'].includes(batch.status) && <Cancel tenant={tenant} batch={batch} />
      }
    >
      <Stack gap="xl">
        <ProgressBar batch={batch} />
        <Facts label="The batch" facts={factsOf(batch)} />
        {batch.errors.length > 0 && <Errors batch={batch} />}
        {batch.results.length > 0 && mayRead && <Results tenant={tenant} batch={batch} />}
        {notAnswered > 0 && !runs(batch) && batch.results.length > 0 && mayRead && (
          <FailedLines tenant={tenant} batch={batch} />
        )}
      </Stack>
    </Page>
  );
}

function factsOf(batch: Batch): Fact[] {
  const { counts, tokens } = batch;
  const facts: Fact[] = [
    { name: 'State', value: <State tone={toneOf(batch.status)}>{batch.status.replaceAll('_', ' ')}</State> },
    {
      name: 'Lines',
      value: displayCount(counts.total),
      about: `${displayCount(counts.completed)} completed, ${displayCount(counts.failed)} failed, ${displayCount(counts.cancelled)} cancelled, ${displayCount(counts.expired)} expired, ${displayCount(counts.left)} left.`,
    },
    { name: 'Cost so far', value: <Cost batch={batch} />, about: 'As the books have it.' },
    { name: 'Asks', value: batch.endpoint, about: `On the lane ${batch.lane}.` },
    { name: 'Project', value: batch.project ?? batch.project_id, about: `By the key ${batch.key}.` },
    { name: 'Ordered', value: <Instant at={batch.created_at} /> },
    runs(batch)
      ? { name: 'Expires', value: <Instant at={batch.expires_at} />, about: 'What was not run until then is not run.' }
      : { name: 'Ended', value: <Instant at={batch.ended_at} /> },
    { name: 'Id', value: <Copied text={batch.id} label="the batch's id" /> },
  ];
  if (batch.surface === 'openai') {
    facts.splice(3, 0, {
      name: 'Tokens',
      value: displayCount(tokens.input + tokens.output),
      about: `${displayCount(tokens.input)} in, ${displayCount(tokens.cached)} of them from the cache; ${displayCount(tokens.output)} out.`,
    });
  }
  return facts;
}

function Errors({ batch }: { batch: Batch }) {
  return (
    <Alert color="red" variant="outline" role="note" title="What was wrong">
      <List size="sm">
        {batch.errors.map((error, place) => (
          <List.Item key={place} className="wraps">
            {error.message} <Code>{error.code}</Code>
          </List.Item>
        ))}
      </List>
    </Alert>
  );
}

function Results({ tenant, batch }: { tenant: string; batch: Batch }) {
  const path = `/admin/v1/tenants/${encodeURIComponent(tenant)}/batches/${batch.id}/results`;
  return (
    <Stack gap="xs" align="flex-start">
      <Title order={2} size="h4">
        Results
      </Title>
      <Text size="sm">
        They say what the project asked and was answered. Its policy must let people read it, and the audit log says who
        did.
      </Text>
      <Group align="flex-start">
        {batch.results.map((kind) => (
          <Download key={kind} path={`${path}?kind=${kind}`} label={`Download the file of ${WHAT[kind]}`}>
            {`Download ${WHAT[kind]}`}
          </Download>
        ))}
      </Group>
    </Stack>
  );
}

const WHAT = { output: 'results', error: 'errors' };

function FailedLines({ tenant, batch }: { tenant: string; batch: Batch }) {
  const [opened, setOpened] = useState(false);
  return (
    <Stack gap="xs" align="flex-start">
      <Title order={2} size="h4">
        Lines without an answer
      </Title>
      {opened ? (
        <div style={{ width: '100%' }}>
          <FailedTable tenant={tenant} batch={batch} />
        </div>
      ) : (
        <Button variant="default" onClick={() => setOpened(true)}>
          Show them
        </Button>
      )}
    </Stack>
  );
}

function FailedTable({ tenant, batch }: { tenant: string; batch: Batch }) {
  const params = { path: { tenant, batch: batch.id }, query: { limit: FAILED_SHOWN } };
  // each reading is recorded: it is read once, when it is asked for
  const found = query.useQuery(
    'get',
    `${AT}/failed-lines`,
    { params },
    { staleTime: Infinity, retry: false, refetchOnWindowFocus: false },
  );
  return (
    <Loaded query={found} what="the lines without an answer">
      {({ data, has_more }) => (
        <>
          <DataTable
            caption={`Lines without an answer of ${batch.id}`}
            columns={[
              { header: 'Line', cell: (line) => <span className="wraps">{line.custom_id}</span> },
              { header: 'Status', numeric: true, cell: (line) => line.status ?? '–' },
              { header: 'Code', cell: (line) => line.code ?? '–' },
              { header: 'Why', cell: (line) => <span className="wraps">{line.message}</span> },
            ]}
            rows={data}
            rowKey={(line) => line.custom_id}
            empty="The results name none."
          />
          {has_more && <Text size="xs">There are more of them in the file.</Text>}
        </>
      )}
    </Loaded>
  );
}

function Cancel({ tenant, batch }: { tenant: string; batch: Batch }) {
  const queries = useQueryClient();
  return (
    <ActionDialog
      label="Cancel"
      title="Cancel the batch"
      about="No further line is begun. Lines that run are finished, and paid for. This cannot be undone."
      action="Cancel the batch"
      danger
      run={async () => (await api.POST(`${AT}/cancel`, { params: { path: { tenant, batch: batch.id } } })).data!}
      done="The batch is being cancelled."
      onDone={() => void queries.invalidateQueries({ queryKey: ['get', AT] })}
    />
  );
}
