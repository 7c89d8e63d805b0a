/** The lines of an invoice, each opened into days, a day into hours, an hour into requests. */
import { Stack, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';

import { query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Instant, Money } from '~/components/values';
import { addAmounts, compareAmounts, displayCount, placesOf } from '~/money/decimal';
import { useProjects } from '~/pages/access/useProjects';

import { WordLink } from '../components/WordLink';
import type { OpenedLine } from './filters';
import { readLines, readRequests } from './invoice_source';
import { counted, SumLine } from './SumLine';

type Line = Schema<'LineObject'>;
type Slice = Schema<'SliceObject'>;
type Billed = Schema<'BilledRequestObject'>;

const DRILL = '/admin/v1/tenants/{tenant}/invoices/{invoice}/lines/{line}/drill';

interface Place {
  tenant: string;
  invoice: Schema<'InvoiceDetails'>;
}

interface InvoiceLinesProps extends Place {
  opened: OpenedLine;
}

export function InvoiceLines({ tenant, invoice, opened }: InvoiceLinesProps) {
  const lines = useQuery({
    queryKey: ['lines', tenant, invoice.id],
    queryFn: ({ signal }) => readLines(tenant, invoice.id, signal),
    staleTime: invoice.state === 'draft' ? 5_000 : Infinity,
    refetchInterval: false,
  });
  const { currency } = invoice;
  const exactPlaces = placesOf((lines.data ?? []).map((line) => line.exact));
  const pricePlaces = placesOf((lines.data ?? []).flatMap((line) => line.price ?? []));
  const columns: Column<Line>[] = [
    {
      header: 'Line',
      cell: (line) =>
        line.opens ? (
          <LevelLink tenant={tenant} invoice={invoice} search={{ line: line.n }}>
            {line.n} · {line.text}
          </LevelLink>
        ) : (
          `${line.n} · ${line.text}`
        ),
      total: 'Net',
    },
    ...projectColumn(useProjects(tenant), lines.data ?? []),
    { header: 'Lane', cell: (line) => line.lane },
    { header: 'Days', cell: (line) => <LineDays of={line} /> },
    { header: 'Units', numeric: true, cell: (line) => (line.units === 0 ? '' : displayCount(line.units)) },
    {
      header: 'Price per million',
      numeric: true,
      cell: (line) => line.price !== null && <Money amount={line.price} currency={currency} places={pricePlaces} />,
    },
    { header: 'Exact', numeric: true, cell: (line) => <Money amount={line.exact} places={exactPlaces} />, total: '' },
    {
      header: 'Net',
      numeric: true,
      cell: (line) => <Money amount={line.net} />,
      total: <Money amount={invoice.net} currency={currency} />,
    },
  ];
  return (
    <section aria-labelledby="lines">
      <Title order={2} id="lines" mb="xs">
        Lines
      </Title>
      <Loaded query={lines} what="the lines" height={320}>
        {(rows) => {
          const line = rows.find((one) => one.n === opened.line);
          return (
            <Stack>
              <DataTable
                caption={`Lines of ${invoice.number ?? 'the draft'}`}
                columns={columns}
                rows={rows}
                rowKey={(one) => String(one.n)}
                empty="It has no lines."
              />
              <NetOfLines lines={rows} invoice={invoice} />
              {line !== undefined && line.opens && (
                <Days tenant={tenant} invoice={invoice} line={line} day={opened.day} hour={opened.hour} />
              )}
            </Stack>
          );
        }}
      </Loaded>
    </section>
  );
}

/** The column of projects, where the invoice is made out by project: else lines of two projects would look the same. */
function projectColumn(projects: readonly { id: string; name: string }[], lines: readonly Line[]): Column<Line>[] {
  if (lines.every((line) => line.project_id === null)) return [];
  const names = new Map(projects.map(({ id, name }) => [id, name]));
  return [{ header: 'Project', cell: (line) => names.get(line.project_id ?? '') ?? line.project_id ?? '' }];
}

function NetOfLines({ lines, invoice }: { lines: readonly Line[]; invoice: Schema<'InvoiceDetails'> }) {
  const sum = addAmounts(lines.map((line) => line.net));
  const equal = compareAmounts(sum, invoice.net) === 0;
  return (
    <Text size="sm" role={equal ? undefined : 'alert'} data-sum={equal ? 'equal' : 'different'}>
      {counted(lines.length, 'line')} {lines.length === 1 ? 'is' : 'are'}{' '}
      <Money amount={sum} currency={invoice.currency} places="exact" />
      {equal ? ', exactly the net amount.' : `, but the net amount is ${invoice.net}.`}
    </Text>
  );
}

interface LevelLinkProps extends Place {
  search: OpenedLine;
  children: React.ReactNode;
}

function LevelLink({ tenant, invoice, search, children }: LevelLinkProps) {
  return (
    <WordLink
      to="/tenants/$tenant/invoices/$invoice"
      params={{ tenant, invoice: invoice.id }}
      search={search}
      resetScroll={false}
    >
      {children}
    </WordLink>
  );
}

interface DaysProps extends Place {
  line: Line;
  day?: string;
  hour?: number;
}

function Days({ tenant, invoice, line, day, hour }: DaysProps) {
  const days = query.useQuery('get', DRILL, {
    params: { path: { tenant, invoice: invoice.id, line: line.n }, query: { by: 'day' } },
  });
  return (
    <Level title={`Line ${line.n} by day`}>
      <Loaded query={days} what="the days" height={240}>
        {({ data, total }) => (
          <SliceTable
            caption={`Days of line ${line.n}`}
            slices={data as Slice[]}
            currency={invoice.currency}
            label={({ start }) => (
              <LevelLink tenant={tenant} invoice={invoice} search={{ line: line.n, day: start.slice(0, 10) }}>
                {start.slice(0, 10)}
              </LevelLink>
            )}
            heading="Day (UTC)"
            sum={
              <SumLine
                parts={data}
                what={counted(data.length, 'day')}
                parent={total}
                of={`line ${line.n}`}
                currency={invoice.currency}
              />
            }
          />
        )}
      </Loaded>
      {day !== undefined && <Hours tenant={tenant} invoice={invoice} line={line} day={day} hour={hour} />}
    </Level>
  );
}

function Hours({ tenant, invoice, line, day, hour }: DaysProps & { day: string }) {
  const hours = query.useQuery('get', DRILL, {
    params: { path: { tenant, invoice: invoice.id, line: line.n }, query: { by: 'hour', day } },
  });
  return (
    <Level title={`${day} by hour`}>
      <Loaded query={hours} what="the hours" height={240}>
        {({ data, total }) => (
          <SliceTable
            caption={`Hours of ${day} of line ${line.n}`}
            slices={data as Slice[]}
            currency={invoice.currency}
            label={({ start, requests, adjustments }) =>
              requests + adjustments === 0 ? (
                start.slice(11, 16)
              ) : (
                <LevelLink
                  tenant={tenant}
                  invoice={invoice}
                  search={{ line: line.n, day, hour: Number(start.slice(11, 13)) }}
                >
                  {start.slice(11, 16)}
                </LevelLink>
              )
            }
            heading="Hour (UTC)"
            sum={
              <SumLine
                parts={data}
                what={counted(data.length, 'hour')}
                parent={total}
                of={day}
                currency={invoice.currency}
              />
            }
          />
        )}
      </Loaded>
      {hour !== undefined && <Requests tenant={tenant} invoice={invoice} line={line} day={day} hour={hour} />}
    </Level>
  );
}

function Requests({ tenant, invoice, line, day, hour }: DaysProps & { day: string; hour: number }) {
  const requests = useQuery({
    queryKey: ['requests of an hour', tenant, invoice.id, line.n, day, hour],
    queryFn: () => readRequests(tenant, invoice.id, line.n, day, hour),
    refetchInterval: false,
  });
  const columns: Column<Billed>[] = [
    {
      header: 'Request',
      cell: (one) => (
        <WordLink to={`/tenants/${tenant}/requests/${one.corrects ?? one.id}` as '/'} className="wraps">
          {one.id}
        </WordLink>
      ),
    },
    { header: 'Admitted', cell: (one) => <Instant at={one.admitted_at} /> },
    { header: 'Key', cell: (one) => one.key_name ?? one.key ?? '–' },
    { header: 'Kind', cell: (one) => (one.corrects === null ? 'request' : `corrects ${one.corrects}`) },
    { header: 'Units', numeric: true, cell: (one) => displayCount(one.units) },
    {
      header: 'Exact',
      numeric: true,
      cell: (one) => <Money amount={one.exact} currency={invoice.currency} places="exact" />,
    },
  ];
  return (
    <Level title={`Requests of ${day}, ${clock(hour)}`}>
      <Loaded query={requests} what="the requests" height={240}>
        {({ total, parts }) => (
          <>
            <DataTable
              caption={`Requests of ${day}, ${hour}:00, of line ${line.n}`}
              columns={columns}
              rows={parts}
              rowKey={(one) => `${one.id} ${one.admitted_at}`}
              empty="No request of the line was admitted in this hour."
            />
            <SumLine
              parts={parts}
              what={counted(parts.length, 'request')}
              parent={total}
              of={`${day}, ${clock(hour)}`}
              currency={invoice.currency}
            />
          </>
        )}
      </Loaded>
    </Level>
  );
}

function Level({ title, children }: { title: string; children: React.ReactNode }) {
  return (
    <Stack component="section" aria-label={title} gap="xs" pl={{ base: 0, sm: 'md' }}>
      <Title order={3}>{title}</Title>
      {children}
    </Stack>
  );
}

interface SliceTableProps {
  caption: string;
  slices: Slice[];
  currency: string;
  heading: string;
  label: (slice: Slice) => React.ReactNode;
  sum: React.ReactNode;
}

function SliceTable({ caption, slices, currency, heading, label, sum }: SliceTableProps) {
  const exactPlaces = placesOf(slices.map((slice) => slice.exact));
  const columns: Column<Slice>[] = [
    { header: heading, cell: label },
    { header: 'Requests', numeric: true, cell: (slice) => displayCount(slice.requests) },
    { header: 'Corrections', numeric: true, cell: (slice) => displayCount(slice.adjustments) },
    { header: 'Units', numeric: true, cell: (slice) => displayCount(slice.units) },
    {
      header: 'Exact',
      numeric: true,
      cell: (slice) => <Money amount={slice.exact} currency={currency} places={exactPlaces} />,
    },
  ];
  return (
    <>
      <DataTable
        caption={caption}
        columns={columns}
        rows={slices}
        rowKey={(slice) => slice.start}
        empty="There is no usage."
      />
      {sum}
    </>
  );
}

/** `08:00` */
function clock(hour: number): string {
  return `${String(hour).padStart(2, '0')}:00`;
}

/** The days in which a line's usage was. */
function LineDays({
  of: { service_from: from, service_until: until },
}: {
  of: Pick<Line, 'service_from' | 'service_until'>;
}) {
  return (
    <>
      <time dateTime={from} className="unbroken">
        {from}
      </time>{' '}
      –{' '}
      <time dateTime={until} className="unbroken">
        {until}
      </time>
    </>
  );
}
