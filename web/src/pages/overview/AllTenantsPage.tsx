/** How all tenants stand together, for operators: spend, money, waits, what waits for somebody, the largest tenants. */
import { Button, Stack, Text, Title } from '@mantine/core';

import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import type { Schema } from '~/api/client';
import { Amounts, displayRate, type Fact, Facts } from '~/components/Facts';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Partial } from '~/components/Partial';
import { Instant, Money } from '~/components/values';
import { displayCount } from '~/money/decimal';
import { dayOf, wholeDay } from '~/time/days';

import { displayMilliseconds, firstTokenNote, Notices, QueueWaits } from './parts';
import { allTenantsOptions } from './queries';
import { SpendChart } from './SpendChart';
import { WaitsForYou } from './WaitsForYou';

type Overview = Schema<'PlatformOverview'>;
type Currency = Schema<'MoneyObject'>;

export function AllTenantsPage() {
  const overview = useQuery(allTenantsOptions);
  const decides = may(useMe(), 'approvals.decide'); // then what waits is above, with the decision
  return (
    <Page
      title="All tenants"
      about="How the tenants stand together that you may see whole."
      actions={
        <Button component={Link} to="/platform/tenants" variant="default">
          Table of tenants
        </Button>
      }
    >
      <Partial />
      <Loaded query={overview} what="the overview" height={320}>
        {(found) => (
          <Stack gap="md">
            <WaitsForYou />
            <Notices notices={found.notices.filter(({ code }) => code !== 'approval_waiting' || !decides)} />
            <Facts label="At a glance" facts={factsOf(found)} />
            {found.balances !== null && <Balances balances={found.balances} />}
            <QueueWaits service={found.service} />
            <Text size="xs" c="dimmed">
              As of <Instant at={found.at} />. Usage is complete until <Instant at={found.complete_until} />. Waits and
              ends are of the last 24 hours, as gateways counted them.
            </Text>
          </Stack>
        )}
      </Loaded>
      <SpendChart />
    </Page>
  );
}

function factsOf({ period, today, month, service, at }: Overview): Fact[] {
  const money = (amount: string, currency: string) => <Money amount={amount} currency={currency} places={2} />;
  return [
    {
      name: `Spend in ${period}`,
      value: <Amounts amounts={month.cost} show={money} />,
      about: `${displayCount(month.requests)} requests`,
      to: '/platform/usage',
      search: { group: 'tenant' },
      linkText: 'By tenant',
    },
    {
      name: 'Spend today (UTC)',
      value: <Amounts amounts={today.cost} show={money} />,
      about: `${displayCount(today.requests)} requests`,
      to: '/platform/usage',
      search: { ...wholeDay(dayOf(at)), bucket: 'hour', group: 'tenant' },
      linkText: 'By hour',
    },
    {
      name: 'Requests, last 24 hours',
      value: displayCount(service.ok + service.cancelled + service.failed),
      about: `${displayCount(service.failed)} failed, ${displayCount(service.cancelled)} cancelled`,
      to: '/platform/usage',
      search: { group: 'tenant', measure: 'requests' },
      linkText: 'By tenant',
    },
    {
      name: 'Time to first token',
      value: displayMilliseconds(service.first_token.p50_ms),
      about: firstTokenNote(service),
      to: '/platform/fleet',
      linkText: 'Fleet',
    },
    {
      name: 'Hit rate of tokens',
      value: displayRate(month.hit_rate),
      about: `${displayCount(month.read_tokens)} of ${displayCount(month.prompt_tokens)} prompt tokens`,
      to: '/platform/usage',
      search: { group: 'tenant', measure: 'tokens' },
      linkText: 'By tenant',
    },
    {
      name: 'Saved by caching',
      value: <Amounts amounts={month.saved} show={money} />,
      about: `in ${period}, against uncached prompts`,
    },
  ];
}

function Balances({ balances }: { balances: Currency[] }) {
  const money = (name: 'available' | 'held' | 'receivable', header: string): Column<Currency> => ({
    header,
    numeric: true,
    cell: (one) => <Money amount={one[name]} currency={one.currency} places={2} />,
  });
  const columns: Column<Currency>[] = [
    { header: 'Currency', cell: (one) => one.currency },
    { header: 'Tenants', numeric: true, cell: (one) => displayCount(one.tenants) },
    money('available', 'Available'),
    money('held', 'Held'),
    money('receivable', 'Used and not paid'),
    { header: 'With nothing left', numeric: true, cell: (one) => displayCount(one.exhausted) },
  ];
  return (
    <section aria-label="Balances">
      <Title order={2}>Balances</Title>
      <DataTable
        caption="Balances of all tenants by currency"
        columns={columns}
        rows={balances}
        rowKey={(one) => one.currency}
        empty="No tenant has a balance yet."
      />
    </section>
  );
}
