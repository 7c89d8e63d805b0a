/** What a tenant, or all together, spent by day in the last 30 days: a widget that fails alone. */
import { Anchor, Group, SegmentedControl, Title } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import { useState } from 'react';

import { query } from '~/api/client';
import { Chart } from '~/components/charts/Chart';
import { Loaded } from '~/components/Loaded';
import { useToday } from '~/time/days';

import { FirstRequest } from '../usage/FirstRequest';
import { bucketLabel, cellOf, currenciesOf, displayMeasure, sentenceOf, type Series, stacksOf } from '../usage/series';
import { lastDays } from '../usage/search';

export function SpendChart({ tenant }: { tenant?: string }) {
  const { from, to } = lastDays(useToday(), 30);
  const span = { since: `${from}T00:00:00Z`, until: `${to}T00:00:00Z`, bucket: 'day' as const };
  const own = query.useQuery(
    'get',
    '/admin/v1/tenants/{tenant}/usage/series',
    { params: { path: { tenant: tenant ?? '' }, query: { ...span, group_by: ['model'], top: 5 } } },
    { enabled: tenant !== undefined },
  );
  const all = query.useQuery(
    'get',
    '/admin/v1/usage/series',
    { params: { query: { ...span, group_by: ['tenant'], top: 5 } } },
    { enabled: tenant === undefined },
  );
  const found = tenant === undefined ? all : own;
  const place = tenant === undefined ? '/platform/usage' : `/tenants/${tenant}/usage`;
  const group = tenant === undefined ? 'tenant' : 'model';
  return (
    <section aria-label="Spend by day">
      <Group justify="space-between">
        <Title order={2}>{`Spend by day and ${group}, last 30 days`}</Title>
        <Anchor component={Link} {...({ to: place, search: { from, to, group, view: 'table' } } as object)} size="sm">
          As table
        </Anchor>
      </Group>
      <Loaded query={{ ...found, data: found.data as Series | undefined }} what="the spend by day" height={300}>
        {(series) =>
          series.lines.length === 0 ? (
            <FirstRequest>There is no usage in the last 30 days.</FirstRequest>
          ) : (
            <Bars series={series} />
          )
        }
      </Loaded>
    </section>
  );
}

function Bars({ series }: { series: Series }) {
  const currencies = currenciesOf(series.total);
  const [wanted, setCurrency] = useState<string>();
  const currency = currencies.find((each) => each === wanted) ?? currencies[0];
  return (
    <>
      {currencies.length > 1 && (
        <SegmentedControl aria-label="Currency" size="xs" data={currencies} value={currency} onChange={setCurrency} />
      )}
      <Chart
        labels={series.starts.map((start) => bucketLabel(start, series.bucket))}
        stacks={stacksOf(series, 'cost', currency)}
        sentence={sentenceOf(series, 'cost', currency)}
        complete={series.complete}
        figure={(stack, bucket) => displayMeasure(cellOf(series.lines[stack]!, bucket), 'cost', currency)}
        height={240}
        unit={currency ?? ''}
      />
    </>
  );
}
