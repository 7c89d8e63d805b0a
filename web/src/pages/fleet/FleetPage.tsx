/** The replicas as the gateway that answers sees them, asked again each second; only changes of state are announced. */
import { Alert, Button, Group, Paper, Progress, Stack, Text, Title, VisuallyHidden } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { query, type Schema } from '~/api/client';
import { DataTable } from '~/components/DataTable';
import { Confirm, FormProblem } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { State } from '~/components/values';

import {
  adaptersOf,
  announcement,
  attentionOf,
  draftsOf,
  laneRows,
  ratesOf,
  stateOf,
  tierRows,
  type TierRow,
} from './replicas';

type Replica = Schema<'ReplicaObject'>;

const PATH = '/admin/v1/fleet';
const EVERY_MS = 1_000;

export function FleetPage() {
  const fleet = query.useQuery('get', PATH, {}, { refetchInterval: EVERY_MS, staleTime: 0 });
  return (
    <Page title="Fleet" about="Replicas with their load and memory, as the gateway that answers hears it each second.">
      <Loaded query={fleet} what="the replicas" height={320}>
        {({ gateway, data }) => (
          <Stack gap="md">
            <Text size="sm">
              Gateway <span className="wraps">{gateway.name}</span>: {gateway.connections} open connections
              {gateway.draining ? '; it takes no more requests.' : '.'}
            </Text>
            <VisuallyHidden role="status" aria-live="polite">
              {announcement(data)}
            </VisuallyHidden>
            {data.length === 0 && (
              <Text c="dimmed">No replicas are set. Start one with “turnpike engine” and name it in --replicas.</Text>
            )}
            {data.map((replica) => (
              <ReplicaCard key={replica.address} replica={replica} />
            ))}
          </Stack>
        )}
      </Loaded>
    </Page>
  );
}

function ReplicaCard({ replica }: { replica: Replica }) {
  const mayChange = may(useMe(), 'fleet.write');
  const { word, tone } = stateOf(replica);
  const drafts = draftsOf(replica.metrics);
  const attention = attentionOf(replica.metrics);
  return (
    <Paper component="section" withBorder p="md" aria-label={`Replica ${replica.name}`}>
      <Stack gap="sm">
        <Group justify="space-between">
          <Group gap="sm">
            <Title order={2} className="wraps">
              {replica.name}
            </Title>
            <State tone={tone}>{word}</State>
          </Group>
          {mayChange && replica.state !== 'down' && <DrainButton replica={replica} />}
        </Group>
        {replica.problem !== '' && (
          <Alert color="red" variant="outline">
            {replica.problem}
          </Alert>
        )}
        <Text size="sm" className="wraps">
          {replica.model ?? 'No model is known yet'} at {replica.address}
          {replica.silent_s >= 2 && `; heard ${Math.round(replica.silent_s)} s ago`}
        </Text>
        <Group gap="xl">
          <Figure name="Running" value={replica.running} of={replica.running_most} />
          <Figure name="Requests from here" value={replica.requests} />
          <Figure name="Steps" value={replica.steps} />
          <Figure name="Epoch" value={replica.epoch} />
          <Figure name="Context" value={replica.context_tokens} unit="tokens" />
        </Group>
        <Text size="sm">
          <strong>What holds it back:</strong> {replica.held_back_by}
        </Text>
        {replica.rates !== null && <Text size="sm">{ratesOf(replica.rates)}</Text>}
        {attention !== '' && <Text size="sm">{attention}</Text>}
        {drafts !== '' && <Text size="sm">{drafts}</Text>}
        <Text size="sm" className="wraps">
          {adaptersOf(replica)}
        </Text>
        <DataTable
          caption={`Queues of ${replica.name}`}
          columns={[
            { header: 'Lane', cell: (row) => row.lane },
            { header: 'Waiting', numeric: true, cell: (row) => row.waiting },
            { header: 'Engine time', numeric: true, cell: (row) => row.service },
          ]}
          rows={laneRows(replica)}
          rowKey={(row) => row.lane}
          empty="No heartbeat was heard yet."
        />
        <DataTable
          caption={`Memory of ${replica.name}`}
          columns={[
            { header: 'Tier', cell: (row) => row.name },
            { header: 'In use', numeric: true, cell: (row) => row.referenced },
            { header: 'Cached', numeric: true, cell: (row) => row.cached },
            { header: 'Free', numeric: true, cell: (row) => row.free },
            { header: 'Blocks', numeric: true, cell: (row) => row.total },
            { header: 'Filled', cell: (row) => <Filled row={row} /> },
          ]}
          rows={tierRows(replica)}
          rowKey={(row) => row.name}
          empty="No heartbeat was heard yet."
        />
      </Stack>
    </Paper>
  );
}

interface FigureProps {
  name: string;
  value: number | null;
  of?: number | null;
  unit?: string;
}

function Figure({ name, value, of, unit }: FigureProps) {
  const shown = value === null ? '–' : value.toLocaleString('en');
  return (
    <div>
      <Text size="xs" c="dimmed">
        {name}
      </Text>
      <Text>
        {shown}
        {of != null && ` of ${of.toLocaleString('en')}`}
        {unit !== undefined && value !== null && ` ${unit}`}
      </Text>
    </div>
  );
}

function Filled({ row }: { row: TierRow }) {
  return (
    <Group gap="xs" wrap="nowrap" miw={140}>
      <Progress.Root flex={1} size="sm">
        <Progress.Section value={row.filled} color="cyan" aria-label={`${row.name} is filled to ${row.filled} %`} />
      </Progress.Root>
      <Text size="xs">{row.filled} %</Text>
    </Group>
  );
}

function DrainButton({ replica }: { replica: Replica }) {
  const [opened, setOpened] = useState(false);
  const queries = useQueryClient();
  const onSuccess = async (): Promise<void> => {
    await queries.invalidateQueries({ queryKey: ['get', PATH] });
    setOpened(false);
  };
  const drain = query.useMutation('post', `${PATH}/{replica}/drain`, { onSuccess });
  const resume = query.useMutation('post', `${PATH}/{replica}/resume`, { onSuccess });
  const params = { path: { replica: replica.name } };
  if (replica.state === 'draining') {
    return (
      <Group>
        <FormProblem error={resume.error} />
        <Button variant="default" loading={resume.isPending} onClick={() => resume.mutate({ params })}>
          Resume
        </Button>
      </Group>
    );
  }
  return (
    <>
      <Button variant="default" onClick={() => setOpened(true)}>
        Drain
      </Button>
      <Confirm
        opened={opened}
        close={() => setOpened(false)}
        title={`Drain ${replica.name}`}
        action="Drain"
        pending={drain.isPending}
        error={drain.error}
        confirm={() => drain.mutate({ params })}
      >
        It takes no more requests, from any gateway, and runs those that it has to their end. Resume it at any time.
      </Confirm>
    </>
  );
}
