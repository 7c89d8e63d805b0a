/** Usage over time: a chart and its table, by what one chooses, of one tenant or of all. */
import { Anchor, Button, Checkbox, Group, SegmentedControl, Select, Stack, Text, Title, Tooltip } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Link } from '@tanstack/react-router';
import { type ReactNode, useState } from 'react';

import { download } from '~/api/client';
import { asProblem } from '~/api/problem';
import type { UsageFilters } from '~/app/search';
import { Chart } from '~/components/charts/Chart';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Partial } from '~/components/Partial';
import { Remark } from '~/components/Remark';
import { Instant, Money } from '~/components/values';
import { displayCount } from '~/money/decimal';

import { FilterBar } from './FilterBar';
import { FirstRequest } from './FirstRequest';
import { BUCKETS, type GroupName, MEASURES, pathWith, seriesQuery, type UsageSearch } from './search';
import {
  addSums,
  bucketLabel,
  cellOf,
  changeOf,
  currenciesOf,
  displayMeasure,
  type Line,
  lineName,
  meterName,
  othersOf,
  rowsBehind,
  sentenceOf,
  type Series,
  stacksOf,
  sumOfBucket,
  type Sums,
  tokensOf,
} from './series';

interface SeriesState {
  data: Series | undefined;
  error: unknown;
  dataUpdatedAt: number;
  refetch: () => unknown;
}

interface UsageExplorerProps {
  /** The route of the API that the series comes from. */
  path: string;
  series: SeriesState;
  search: UsageSearch;
  change: (search: UsageSearch) => void;
  groups: readonly GroupName[];
  /** The tenant whose requests stand behind the figures; none over all tenants. */
  tenant?: string;
}

export function UsageExplorer({ path, series, search, change, groups, tenant }: UsageExplorerProps) {
  const set = (more: Partial<UsageSearch>): void => change({ ...search, ...more });
  const measure = search.measure ?? 'cost';
  return (
    <Stack gap="md">
      <Partial />
      <FilterBar filters={search} change={(filters) => set(filters)} tenant={tenant} />
      <Group gap="xs" align="flex-end">
        <div>
          <Text size="sm" fw={500} id="measure-label">
            Show
          </Text>
          <SegmentedControl
            aria-labelledby="measure-label"
            data={MEASURES.map((one) => ({ value: one, label: one[0]!.toUpperCase() + one.slice(1) }))}
            value={measure}
            onChange={(value) => set({ measure: value as UsageSearch['measure'] })}
          />
        </div>
        <GroupSelect
          label="Group by"
          groups={groups}
          value={search.group}
          set={(group) => set({ group, then: undefined })}
        />
        {search.group !== undefined && (
          <GroupSelect
            label="Then by"
            groups={groups.filter((group) => group !== search.group)}
            value={search.then}
            set={(then) => set({ then })}
          />
        )}
        <Select
          label="Interval"
          w={120}
          data={['automatic', ...BUCKETS]}
          value={search.bucket ?? 'automatic'}
          allowDeselect={false}
          onChange={(value) => set({ bucket: value === 'automatic' ? undefined : (value as UsageSearch['bucket']) })}
        />
        {search.group !== undefined && (
          <Select
            label="Show top"
            w={90}
            data={['5', '10', '20', '50']}
            value={String(search.top ?? 10)}
            allowDeselect={false}
            onChange={(value) => set({ top: Number(value) })}
          />
        )}
        <Checkbox
          label="Compare with the span before"
          checked={search.compare !== undefined}
          onChange={(event) => set({ compare: event.currentTarget.checked ? 'previous' : undefined })}
          mb={8}
        />
      </Group>
      <Loaded query={series} what="the usage" height={420}>
        {(shown) =>
          shown.groups === 0 || shown.lines.length === 0 ? (
            <FirstRequest>There is no usage in this span{filtered(search) ? ' with these filters' : ''}.</FirstRequest>
          ) : (
            <Shown
              series={shown}
              stale={series.error !== null}
              path={path}
              search={search}
              set={set}
              measure={measure}
              tenant={tenant}
            />
          )
        }
      </Loaded>
    </Stack>
  );
}

interface ShownProps {
  series: Series;
  stale: boolean;
  path: string;
  search: UsageSearch;
  set: (more: Partial<UsageSearch>) => void;
  measure: 'cost' | 'tokens' | 'requests';
  tenant: string | undefined;
}

function Shown({ series, stale, path, search, set, measure, tenant }: ShownProps) {
  const currencies = currenciesOf(series.total);
  const [wanted, setCurrency] = useState<string | null>(null);
  const currency = wanted !== null && currencies.includes(wanted) ? wanted : currencies[0];
  const stacks = stacksOf(series, measure, currency);
  const sentence = sentenceOf(series, measure, currency);
  const asTable = search.view === 'table';
  const byClass = measure === 'tokens' && series.group_by.length === 0;
  const figure = (stack: number, bucket: number): string => {
    if (byClass) return displayCount(stacks[stack]!.heights[bucket]!);
    return displayMeasure(cellOf(series.lines[stack]!, bucket), measure, currency);
  };
  return (
    <Stack gap="sm">
      {series.note !== '' && <Remark>{series.note}</Remark>}
      <Group justify="space-between" align="flex-end">
        <Group gap="xs" align="flex-end">
          <Text>{sentence}</Text>
        </Group>
        <Group gap="xs">
          {currencies.length > 1 && measure === 'cost' && (
            <Select aria-label="Currency" w={90} data={currencies} value={currency ?? null} onChange={setCurrency} />
          )}
          <SegmentedControl
            aria-label="Chart or table"
            data={[
              { value: 'chart', label: 'Chart' },
              { value: 'table', label: 'Table' },
            ]}
            value={asTable ? 'table' : 'chart'}
            onChange={(value) => set({ view: value === 'table' ? 'table' : undefined })}
          />
          <Export series={series} stale={stale} path={path} search={search} />
        </Group>
      </Group>
      {asTable ? (
        <ByBucket series={series} search={search} tenant={tenant} measure={measure} currency={currency} />
      ) : (
        <Chart
          labels={series.starts.map((start) => bucketLabel(start, series.bucket))}
          stacks={stacks}
          sentence={sentence}
          complete={series.complete}
          unit={measure === 'cost' ? (currency ?? '') : measure}
          figure={figure}
        />
      )}
      <Title order={2}>{series.group_by.length === 0 ? 'In all' : `By ${series.group_by.join(' and ')}`}</Title>
      <ByLine series={series} search={search} tenant={tenant} measure={measure} currency={currency} />
      <Text size="xs" c="dimmed">
        As of <Instant at={series.as_of} />. Complete until <Instant at={series.complete_until} />: requests that were
        admitted later may still run.
      </Text>
    </Stack>
  );
}

/** The same figures as a file, of exactly what is on screen. It is refused where what is on screen is not whole. */
function Export({ series, stale, path, search }: Pick<ShownProps, 'series' | 'stale' | 'path' | 'search'>) {
  const [running, setRunning] = useState(false);
  const save = async (): Promise<void> => {
    setRunning(true);
    try {
      const asked = { ...seriesQuery(search), bucket: series.bucket, format: 'csv', digest: series.digest };
      await download(pathWith(path, asked));
    } catch (error) {
      notifications.show({ color: 'red', title: 'Nothing was exported', message: asProblem(error).message });
    } finally {
      setRunning(false);
    }
  };
  const reason = stale ? 'What is on screen could not be refreshed: it is exported when it is whole again.' : '';
  return (
    <Tooltip label={reason} disabled={!stale}>
      <Button
        variant="default"
        onClick={() => void save()}
        loading={running}
        disabled={stale}
        title={reason || undefined}
      >
        Export CSV
      </Button>
    </Tooltip>
  );
}

type TableProps = Pick<ShownProps, 'series' | 'search' | 'tenant' | 'measure'> & { currency: string | undefined };

/** One row a bucket, one column a line, and the sums of both. */
function ByBucket({ series, search, tenant, measure, currency }: TableProps) {
  const others = othersOf(series);
  const shown = (sums: Sums): ReactNode => displayMeasure(sums, measure, currency);
  const columns: Column<number>[] = [
    {
      header: series.bucket[0]!.toUpperCase() + series.bucket.slice(1),
      cell: (bucket) => {
        const start = series.starts[bucket]!;
        const label =
          series.bucket === 'hour'
            ? `${start.slice(0, 10)} ${start.slice(11, 16)}`
            : bucketLabel(start, series.bucket === 'month' ? 'month' : 'day');
        return `${series.bucket === 'day' ? start.slice(0, 10) : label}${bucket < series.complete ? '' : ' *'}`;
      },
      total: 'Total',
    },
    ...(series.group_by.length === 0 ? [] : series.lines).map((line) => ({
      header: lineName(line, series.group_by, others),
      numeric: true,
      cell: (bucket: number) => {
        const cell = cellOf(line, bucket);
        return cell.requests === 0 && tokensOf(cell) === 0 ? (
          '–'
        ) : (
          <Rows tenant={line.rest ? undefined : tenant} filters={rowsBehind(search, series, line, bucket)}>
            {shown(cell)}
          </Rows>
        );
      },
      total: shown(line.total),
    })),
    {
      header: 'All',
      numeric: true,
      cell: (bucket) => (
        <Rows tenant={tenant} filters={rowsBehind(search, series, undefined, bucket)}>
          {shown(sumOfBucket(series, bucket))}
        </Rows>
      ),
      total: shown(series.total),
    },
  ];
  const buckets = series.starts.map((_, bucket) => bucket).reverse();
  return (
    <div>
      <DataTable
        caption={`${measure} by ${series.bucket}`}
        columns={columns}
        rows={buckets}
        rowKey={String}
        empty="There is no usage."
      />
      {series.complete < series.starts.length && (
        <Text size="xs" c="dimmed">
          * not complete yet
        </Text>
      )}
    </div>
  );
}

/** One row a line, with requests, tokens by class and the exact cost. */
function ByLine({ series, search, tenant, measure, currency }: TableProps) {
  const others = othersOf(series);
  const currencies = currenciesOf(series.total);
  const total = addSums(series.lines.map((line) => line.total));
  const columns: Column<Line>[] = [
    { header: 'Group', cell: (line) => lineName(line, series.group_by, others), total: 'Total' },
    {
      header: 'Requests',
      numeric: true,
      cell: (line) => (
        <Rows tenant={line.rest ? undefined : tenant} filters={rowsBehind(search, series, line)}>
          {displayCount(line.total.requests)}
        </Rows>
      ),
      total: displayCount(total.requests),
    },
    ...Object.keys(series.total.tokens).map((meter) => ({
      header: meterName(meter),
      numeric: true,
      cell: (line: Line) => displayCount(line.total.tokens[meter] ?? 0),
      total: displayCount(total.tokens[meter] ?? 0),
    })),
    ...currencies.map((each) => ({
      header: `Cost, ${each}`,
      numeric: true,
      cell: (line: Line) => <Money amount={line.total.cost[each] ?? '0'} />,
      total: <Money amount={total.cost[each] ?? '0'} />,
    })),
  ];
  if (series.previous) {
    const { previous } = series;
    columns.push({
      header: 'Span before',
      numeric: true,
      cell: (line) => (line.previous ? displayMeasure(line.previous, measure, currency) : ''),
      total: displayMeasure(previous.total, measure, currency),
    });
    columns.push({
      header: 'Change',
      numeric: true,
      cell: (line) => changeOf(line.total, line.previous, measure, currency),
      total: changeOf(total, previous.total, measure, currency),
    });
  }
  return (
    <DataTable
      caption="Usage by group"
      columns={columns}
      rows={series.lines}
      rowKey={(line) => series.group_by.map((group) => line[group]).join(' ')}
      empty="There is no usage."
    />
  );
}

/** A figure that links to the requests that make it, where they are one tenant's. */
function Rows({
  tenant,
  filters,
  children,
}: {
  tenant: string | undefined;
  filters: UsageFilters;
  children: ReactNode;
}) {
  if (tenant === undefined) return <>{children}</>;
  const target = { to: '/tenants/$tenant/requests', params: { tenant }, search: filters };
  return (
    <Anchor component={Link} inherit {...(target as object)}>
      {children}
    </Anchor>
  );
}

function GroupSelect({
  label,
  groups,
  value,
  set,
}: {
  label: string;
  groups: readonly GroupName[];
  value: GroupName | undefined;
  set: (group: GroupName | undefined) => void;
}) {
  return (
    <Select
      label={label}
      w={130}
      placeholder="none"
      clearable
      data={groups.map((group) => ({ value: group, label: group[0]!.toUpperCase() + group.slice(1) }))}
      value={value ?? null}
      onChange={(chosen) => set((chosen as GroupName | null) ?? undefined)}
    />
  );
}

function filtered({ project, model, lane, key, tenant }: UsageSearch): boolean {
  return [project, model, lane, key, tenant].some((value) => value !== undefined);
}
