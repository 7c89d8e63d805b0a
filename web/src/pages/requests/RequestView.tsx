/** All that is known of one request: the page of its own and the drawer beside the list show the same. */
import { Anchor, Button, Code, CopyButton, Stack, Text, Title } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';

import { query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { type Fact, Facts } from '~/components/Facts';
import { Loaded } from '~/components/Loaded';
import { Copied, Instant, Money, State } from '~/components/values';
import { displayCount, placesOf } from '~/money/decimal';

import { MissExplanation, RequestLink } from './MissExplanation';
import { readsInWords, readsOf } from './reads';
import { replayCommand, type Waterfall } from './waterfall';
import { WaterfallChart } from './WaterfallChart';

type Details = Schema<'RequestDetails'>;
type Charge = Schema<'Charge'>;

const DETAILS = '/admin/v1/tenants/{tenant}/requests/{name}';
const WATERFALL = '/admin/v1/tenants/{tenant}/requests/{name}/waterfall';
const GROWS_MS = 1_000;
const TONES: Record<string, 'good' | 'waiting' | 'bad' | 'neutral'> = {
  ok: 'good',
  in_flight: 'waiting',
  cancelled: 'neutral',
};
const UNBILLED: Record<Details['status'], string> = {
  in_flight: 'It still runs: what it costs is known when it ends.',
  refused: 'It was refused, so nothing is billed.',
  not_run: 'It never ran, so nothing is billed.',
  finished: '',
};

/** The details of a request; asked for again each second while it runs. */
export function useRequestDetails(tenant: string, name: string) {
  return query.useQuery(
    'get',
    DETAILS,
    { params: { path: { tenant, name } } },
    { refetchInterval: ({ state }) => (state.data?.status === 'in_flight' ? GROWS_MS : false) },
  );
}

function useWaterfall(tenant: string, name: string) {
  const grows = (known: Waterfall | undefined): boolean =>
    known?.recorded === 'running' || known?.why?.includes('not written yet') === true;
  return query.useQuery(
    'get',
    WATERFALL,
    { params: { path: { tenant, name } } },
    { refetchInterval: ({ state }) => (grows(state.data) ? GROWS_MS : false) },
  );
}

export function RequestView({ tenant, name }: { tenant: string; name: string }) {
  const details = useRequestDetails(tenant, name);
  const waterfall = useWaterfall(tenant, name);
  return (
    <Stack gap="lg">
      <Loaded query={details} what="the request" height={90}>
        {(known) => <RequestFacts details={known} />}
      </Loaded>
      <Section title="Where the time went">
        <Loaded query={waterfall} what="the waterfall" height={420}>
          {(shown) => <WaterfallChart waterfall={shown} />}
        </Loaded>
      </Section>
      {details.data !== undefined && <Explained details={details.data} tenant={tenant} waterfall={waterfall.data} />}
    </Stack>
  );
}

interface ExplainedProps {
  details: Details;
  tenant: string;
  waterfall: Waterfall | undefined;
}

function Explained({ details, tenant, waterfall }: ExplainedProps) {
  const { request } = details;
  const model = request?.model ?? 'MODEL';
  return (
    <>
      <Section title="Why it missed">
        <MissExplanation explanation={details.cache} tenant={tenant} />
      </Section>
      <Section title="What it cost">
        <Charges details={details} />
      </Section>
      {details.request !== null && (
        <Section title="Billed reads and reused KV">
          <Reads details={details} request={details.request} />
        </Section>
      )}
      <Section title="In the books">
        <Books details={details} tenant={tenant} />
      </Section>
      {waterfall !== undefined && (
        <Section title="Send one like it">
          <Replay command={replayCommand(waterfall, model, request?.lane ?? 'standard', window.location.origin)} />
        </Section>
      )}
    </>
  );
}

function Section({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Stack component="section" gap="xs" aria-label={title}>
      <Title order={2} size="h4">
        {title}
      </Title>
      {children}
    </Stack>
  );
}

function RequestFacts({ details }: { details: Details }) {
  const { request } = details;
  const status = request?.status ?? details.status;
  const facts: Fact[] = [
    { name: 'Id', value: <Copied text={details.id} label="the id of the request" /> },
    { name: 'Status', value: <State tone={TONES[status] ?? 'bad'}>{status.replaceAll('_', ' ')}</State> },
    ...(details.code === null ? [] : [{ name: 'Error', value: details.code }]),
    { name: 'Project', value: details.project ?? details.project_id },
    { name: 'Key', value: details.request?.key_name ?? details.key ?? '–' },
  ];
  if (request !== null) {
    facts.push(
      { name: 'Model', value: request.model },
      { name: 'Lane', value: request.lane },
      { name: 'Replica', value: request.replica || '–' },
      { name: 'Admitted', value: <Instant at={request.admitted_at} /> },
      { name: 'Ended by', value: request.reason },
    );
  }
  return <Facts label="The request" facts={facts} />;
}

function Charges({ details }: { details: Details }) {
  const { request } = details;
  if (request === null) {
    return (
      <Text size="sm" c="dimmed">
        {UNBILLED[details.status]}
      </Text>
    );
  }
  const columns: Column<Charge>[] = [
    { header: 'Meter', cell: (charge) => charge.meter.replaceAll('_', ' '), total: 'In all' },
    { header: 'Tokens', cell: (charge) => displayCount(charge.units), numeric: true },
    {
      header: 'Price per million',
      cell: (charge) => <Money amount={charge.price} places={placesOf(details.charges.map((one) => one.price))} />,
      numeric: true,
    },
    {
      header: 'Cost',
      cell: (charge) => <Money amount={charge.cost} places={6} />,
      numeric: true,
      total: <Money amount={request.cost} currency={request.currency} places={6} />,
    },
  ];
  return (
    <DataTable
      caption="What the request cost, by meter"
      columns={columns}
      rows={details.charges}
      rowKey={(charge) => charge.meter}
      empty="Nothing of it is billed."
    />
  );
}

/** What the prices know and what the engine did are counted apart: a promise is billed as read whether or not KV was lost. */
function Reads({ details, request }: { details: Details; request: Schema<'RequestObject'> }) {
  const { billed, reused, computed } = readsOf(request.tokens, details.engine);
  const tokens = ([name, count]: [string, number]): Fact => ({ name, value: `${displayCount(count)} tokens` });
  return (
    <Stack gap="xs">
      <Facts
        label="Billed reads and reused KV"
        facts={[
          {
            ...tokens(['Billed as read', billed]),
            about: 'at the price of a read; what was promised and what was found',
          },
          {
            ...tokens(['KV that the engine reused', reused.reduce((sum, [, count]) => sum + count, 0)]),
            about: reused.map(([tier, count]) => `${tier} ${displayCount(count)}`).join(', ') || 'from no tier',
          },
          { ...tokens(['Computed by the engine', computed]), about: 'of the prompt, whatever it was billed as' },
        ]}
      />
      <Text size="sm">{readsInWords(billed, reused)}</Text>
    </Stack>
  );
}

function Books({ details, tenant }: { details: Details; tenant: string }) {
  const { request, hold } = details;
  const counts = Object.entries(details.engine).map(([name, tokens]) => `${name.replaceAll('_', ' ')} ${tokens}`);
  if (request === null && hold === null) {
    return (
      <Text size="sm" c="dimmed">
        It is not in the books.
      </Text>
    );
  }
  return (
    <Stack gap={4}>
      {hold !== null && (
        <Text size="sm">
          Its hold of <Money amount={hold.amount} places={6} /> is {hold.state}. It was taken on{' '}
          <Instant at={hold.admitted_at} /> and ends on <Instant at={hold.expires_at} /> at the latest.
        </Text>
      )}
      {request !== null && (
        <>
          <Text size="sm">
            Its usage event is of {request.period}, by price version {details.price_version}, recorded by the{' '}
            {details.recorded_by} on <Instant at={request.finished_at} />. The event took the place of its hold.
          </Text>
          <Text size="sm">The engine counted, in tokens: {counts.join(', ') || 'nothing'}.</Text>
          {details.adjustments.map((one) => (
            <Text key={one.id} size="sm" component="div">
              Adjusted by <Money amount={one.cost} currency={one.currency} places={6} />:{' '}
              <RequestLink tenant={tenant} id={one.id} />
            </Text>
          ))}
          <Anchor component={Link} to={`/tenants/${tenant}/exports`} size="sm">
            Export the usage of {request.period}, of which this is a row
          </Anchor>
        </>
      )}
    </Stack>
  );
}

function Replay({ command }: { command: string }) {
  return (
    <Stack gap="xs" align="flex-start">
      <Text size="sm" c="dimmed">
        Prompts are not kept, and keys are shown to nobody: put yours in.
      </Text>
      <Code block className="wraps" w="100%" tabIndex={0}>
        {command}
      </Code>
      <CopyButton value={command}>
        {({ copied, copy }) => (
          <Button size="xs" variant="default" onClick={copy}>
            {copied ? 'Copied' : 'Copy the command'}
          </Button>
        )}
      </CopyButton>
    </Stack>
  );
}
