/** How a tenant stands: spend, balance, budgets, requests and waits, the cache, and what somebody should look at. */
import { Anchor, Progress, Stack, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi, Link } from '@tanstack/react-router';

import type { Schema } from '~/api/client';
import { Amounts, displayRate, type Fact, Facts } from '~/components/Facts';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Partial } from '~/components/Partial';
import { Instant, Money } from '~/components/values';
import { addAmounts, displayCount, shareOf } from '~/money/decimal';
import { dayOf, wholeDay } from '~/time/days';

import { Checklist } from './Checklist';
import { displayMilliseconds, firstTokenNote, Notices, QueueWaits } from './parts';
import { overviewOptions } from './queries';
import { SpendChart } from './SpendChart';
import { WaitsForYou } from './WaitsForYou';

type Overview = Schema<'Overview'>;
type Budget = Overview['budgets'][number];

const route = getRouteApi('/signed-in/tenants/$tenant/overview');

export function OverviewPage() {
  const { tenant } = route.useParams();
  const overview = useQuery(overviewOptions(tenant));
  return (
    <Page title="Overview" about={`How ${tenant} stands now.`}>
      <Partial />
      <Loaded query={overview} what="the overview" height={320}>
        {(found) => <Found found={found} tenant={tenant} />}
      </Loaded>
      {overview.data?.started.request !== false && <SpendChart tenant={tenant} />}
    </Page>
  );
}

function Found({ found, tenant }: { found: Overview; tenant: string }) {
  return (
    <Stack gap="md">
      {!found.started.request && <Checklist tenant={tenant} started={found.started} />}
      <WaitsForYou />
      <Notices notices={found.notices} tenant={tenant} />
      <Facts label="At a glance" facts={factsOf(found, tenant)} />
      <Budgets budgets={found.budgets} tenant={tenant} />
      <QueueWaits service={found.service} />
      <Text size="xs" c="dimmed">
        As of <Instant at={found.at} />. Usage is complete until <Instant at={found.complete_until} />: requests that
        were admitted later may still run. Waits and ends are of the last 24 hours, as gateways counted them.
      </Text>
    </Stack>
  );
}

function factsOf(found: Overview, tenant: string): Fact[] {
  const { today, month, service, balance } = found;
  const at = (page: string): string => `/tenants/${tenant}/${page}`;
  const money = (amount: string, currency: string) => <Money amount={amount} currency={currency} places={2} />;
  const since = { from: service.since };
  const facts: Fact[] = [
    {
      name: `Spend in ${found.period}`,
      value: <Amounts amounts={month.cost} show={money} />,
      about: `${displayCount(month.requests)} requests`,
      to: at('usage'),
      search: { group: 'model' },
      linkText: 'By model',
    },
    {
      name: 'Spend today (UTC)',
      value: <Amounts amounts={today.cost} show={money} />,
      about: `${displayCount(today.requests)} requests`,
      to: at('usage'),
      search: { ...wholeDay(dayOf(found.at)), bucket: 'hour' },
      linkText: 'By hour',
    },
  ];
  if (balance !== null) {
    facts.push({
      name: 'Available balance',
      value: money(balance.available, balance.currency),
      about: <>held for requests that run: {money(balance.held, balance.currency)}</>,
      to: at('balance'),
      linkText: 'Statement',
    });
  }
  facts.push(
    {
      name: 'Requests, last 24 hours',
      value: displayCount(service.ok + service.cancelled + service.failed),
      about: `${displayCount(service.failed)} failed, ${displayCount(service.cancelled)} cancelled`,
      to: at('requests'),
      search: since,
      linkText: 'Requests',
    },
    {
      name: 'Failed in the last hour',
      value: displayCount(found.last_hour.failed),
      about: found.last_hour.complete
        ? `of ${displayCount(sumOf(found.last_hour))}`
        : 'of the latest that were counted',
      to: at('requests'),
      search: { from: hourBefore(found.at), status: 'failed' },
      linkText: 'Failed requests',
    },
    {
      name: 'Time to first token',
      value: displayMilliseconds(service.first_token.p50_ms),
      about: firstTokenNote(service),
      to: at('requests'),
      search: since,
      linkText: 'Requests',
    },
    {
      name: 'Hit rate of tokens',
      value: displayRate(month.hit_rate),
      about: `${displayCount(month.read_tokens)} of ${displayCount(month.prompt_tokens)} prompt tokens`,
      to: at('cache'),
      linkText: 'Cache',
    },
    {
      name: 'Saved by caching',
      value: <Amounts amounts={month.saved} show={money} />,
      about: `in ${found.period}, against uncached prompts`,
      to: at('cache'),
      linkText: 'Cache',
    },
  );
  return facts;
}

function hourBefore(instant: string): string {
  return new Date(Date.parse(instant) - 3_600_000).toISOString();
}

function sumOf({ ok, cancelled, failed }: Overview['last_hour']): number {
  return ok + cancelled + failed;
}

function Budgets({ budgets, tenant }: { budgets: Budget[]; tenant: string }) {
  if (budgets.length === 0) return null;
  const columns: Column<Budget>[] = [
    {
      header: 'Budget',
      cell: ({ scope, name }) => (scope === 'tenant' ? 'the whole tenant' : `${scope} ${name}`),
    },
    { header: 'Window', cell: (budget) => budget.window },
    {
      header: 'Used',
      numeric: true,
      cell: (budget) => (
        <Money amount={addAmounts([budget.spent, budget.held])} currency={budget.currency} places={2} />
      ),
    },
    {
      header: 'Limit',
      numeric: true,
      cell: (budget) => <Money amount={budget.limit} currency={budget.currency} places={2} />,
    },
    { header: 'Share', cell: (budget) => <UsedPart budget={budget} /> },
    { header: 'Ends', cell: (budget) => <Instant at={budget.resets_at} distance /> },
  ];
  return (
    <section aria-label="Budgets">
      <Title order={2}>Budgets</Title>
      <DataTable
        caption="Budgets in their present windows"
        columns={columns}
        rows={budgets}
        rowKey={(budget) => budget.id}
        empty="There are no budgets."
      />
      <Anchor component={Link} {...({ to: `/tenants/${tenant}/budgets` } as object)} size="sm">
        All budgets
      </Anchor>
    </section>
  );
}

function UsedPart({ budget }: { budget: Budget }) {
  const part = shareOf(addAmounts([budget.spent, budget.held]), budget.limit);
  const percent = Math.floor(part * 100);
  const tone = percent >= 100 ? 'red.9' : percent >= 80 ? 'yellow.9' : 'cyan.9';
  return (
    <div>
      <Text size="sm">{percent} %</Text>
      <Progress
        value={Math.min(100, percent)}
        color={tone}
        miw={80}
        aria-label={`${percent} % of the budget is used`}
      />
    </div>
  );
}
