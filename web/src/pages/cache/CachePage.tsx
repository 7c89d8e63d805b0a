/** What the cache did for a tenant: hit rate and ceiling, why prompts missed, what is promised, what would cost less. */
import { Anchor, Group, List, Paper, Stack, Text, Title } from '@mantine/core';
import { getRouteApi } from '@tanstack/react-router';

import { query, type Schema } from '~/api/client';
import type { UsageFilters } from '~/app/search';
import { PartsBar, Swatch } from '~/components/charts/patterns';
import { Amounts, displayRate, type Fact, Facts } from '~/components/Facts';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Partial } from '~/components/Partial';
import { Remark } from '~/components/Remark';
import { Instant, Money } from '~/components/values';
import { addAmounts, displayAmount, displayCount } from '~/money/decimal';

import { FilterBar } from '../usage/FilterBar';
import { FirstRequest } from '../usage/FirstRequest';
import { spanOf } from '../usage/search';
import { causeText, causeWord } from './causes';
import { EndingLeases, TopPrefixes, WastedWrites } from './Leases';

type Summary = Schema<'CacheSummaryObject'>;
type Misses = Schema<'CacheMisses'>;
type Miss = Misses['data'][number];
type Class = Summary['classes'][number];

const SUMMARY = '/admin/v1/tenants/{tenant}/cache/summary';
const MISSES = '/admin/v1/tenants/{tenant}/cache/misses';
const route = getRouteApi('/signed-in/tenants/$tenant/cache');

export function CachePage() {
  const { tenant } = route.useParams();
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const only = {
    ...spanOf(search),
    project: search.project === undefined ? undefined : [search.project],
    model: search.model === undefined ? undefined : [search.model],
  };
  const params = { path: { tenant }, query: only };
  const summary = query.useQuery('get', SUMMARY, { params });
  const misses = query.useQuery('get', MISSES, { params });
  return (
    <Page title="Cache" about={`What the prompt cache read, promised and saved for ${tenant}.`}>
      <Partial />
      <FilterBar
        filters={search}
        change={(next) => void navigate({ search: next, replace: true })}
        tenant={tenant}
        only={['project', 'model']}
      />
      {(search.lane !== undefined || search.key !== undefined) && (
        <Text size="sm" c="dimmed">
          Lane and key do not apply here: why prompts missed is kept by project and model.
        </Text>
      )}
      <Loaded query={summary} what="the summary" height={220}>
        {(found) => <Summarized summary={found} tenant={tenant} filters={search} />}
      </Loaded>
      <Loaded query={misses} what="the misses" height={320}>
        {(found) => <Missed misses={found} tenant={tenant} filters={search} />}
      </Loaded>
      <TopPrefixes tenant={tenant} only={only} />
      <EndingLeases tenant={tenant} only={only} />
      <WastedWrites tenant={tenant} only={only} />
    </Page>
  );
}

interface PartProps {
  tenant: string;
  filters: UsageFilters;
}

function Summarized({ summary, tenant, filters }: PartProps & { summary: Summary }) {
  if (summary.prompt_tokens === 0) return <FirstRequest>There were no prompts in this span.</FirstRequest>;
  return (
    <Stack gap="md">
      <Facts label="At a glance" facts={factsOf(summary, tenant, filters)} />
      {!summary.marked && <NoMarkers />}
      <Advice advice={summary.advice} />
      <Classes classes={summary.classes} />
      <Text size="xs" c="dimmed">
        From {summary.start.slice(0, 10)} to {summary.end.slice(0, 10)}, whole days. As of{' '}
        <Instant at={summary.as_of} />; complete until <Instant at={summary.complete_until} />.
        {summary.left_out > 0 &&
          ` Of ${displayCount(summary.left_out)} requests nobody knows why they missed: the history of a day was full.`}
      </Text>
    </Stack>
  );
}

function factsOf(summary: Summary, tenant: string, filters: UsageFilters): Fact[] {
  const { hit_ceiling: ceiling } = summary;
  const money = (amount: string, currency: string) => <Money amount={amount} currency={currency} places={2} />;
  const requests = { ...filters, from: summary.start, to: summary.end };
  return [
    {
      name: 'Hit rate of tokens',
      value: displayRate(summary.hit_rate),
      about: `${displayCount(summary.read_tokens)} of ${displayCount(summary.prompt_tokens)} prompt tokens`,
      to: `/tenants/${tenant}/usage`,
      search: { ...filters, measure: 'tokens' },
      linkText: 'Tokens by class',
    },
    {
      name: 'Hit ceiling',
      value: displayRate(ceiling?.rate),
      about:
        ceiling === null
          ? 'No prompt was long enough to be looked at.'
          : `what a cache could have read of these very prompts, of ${displayCount(ceiling.diagnosed_tokens)} tokens that were looked at`,
      to: `/tenants/${tenant}/requests`,
      search: requests,
      linkText: 'Requests',
    },
    {
      name: 'Saved',
      value: <Amounts amounts={summary.saved} show={money} />,
      about: 'against uncached prompts, writes taken off',
      to: `/tenants/${tenant}/usage`,
      search: { ...filters, group: 'model' },
      linkText: 'Usage',
    },
    {
      name: 'Missed',
      value: <Amounts amounts={summary.missed_cost} show={money} />,
      about: 'what misses cost beyond reading',
      to: `/tenants/${tenant}/requests`,
      search: requests,
      linkText: 'Requests',
    },
  ];
}

/** Automatic and promised caching, for who never set a marker. */
function NoMarkers() {
  return (
    <Remark title="No promise was written in this span">
      Without a marker a prefix is read where it happens to be in memory: automatic reads, cheaper but not certain. A
      marker (<code>cache_control</code>, <code>prompt_cache_breakpoint</code>) is a promise: the prefix up to it is
      written at the price of its class, and every read in its lifetime is certain, at the price of reads.
    </Remark>
  );
}

function Advice({ advice }: { advice: Summary['advice'] }) {
  if (advice.length === 0) return null;
  return (
    <Paper withBorder p="md" component="section" aria-label="Advice">
      <Title order={2}>What would have cost less</Title>
      <List size="sm" spacing={6} mt="xs">
        {advice.map((one) => (
          <List.Item key={`${one.code} ${one.text}`}>
            <Group gap="xs">
              <Text size="sm" fw={600} component="span">
                {Object.entries(one.amount)
                  .map(([currency, amount]) => `${displayAmount(amount, 4)} ${currency}`)
                  .join(', ')}
              </Text>
              <Text size="sm" component="span">
                {one.basis === 'exact' ? 'exactly' : 'at most'}
              </Text>
            </Group>
            {one.text} {displayCount(one.tokens)} tokens.
          </List.Item>
        ))}
      </List>
      <Text size="xs" c="dimmed" mt="xs">
        “At most”: had all misses of the cause been reads; what their writes cost is not taken off.
      </Text>
    </Paper>
  );
}

function Classes({ classes }: { classes: Class[] }) {
  const currencies = [...new Set(classes.flatMap((one) => Object.keys(one.net)))].sort();
  const columns: Column<Class>[] = [
    { header: 'Class', cell: (one) => one.name, total: 'Total' },
    {
      header: 'Read tokens',
      numeric: true,
      cell: (one) => displayCount(one.read_tokens),
      total: displayCount(classes.reduce((sum, one) => sum + one.read_tokens, 0)),
    },
    {
      header: 'Written tokens',
      numeric: true,
      cell: (one) => displayCount(one.write_tokens),
      total: displayCount(classes.reduce((sum, one) => sum + one.write_tokens, 0)),
    },
    ...currencies.flatMap((currency) =>
      (['saved', 'premium', 'net'] as const).map((name) => ({
        header: `${{ saved: 'Saved by reads', premium: 'Paid for writes', net: 'Net' }[name]}, ${currency}`,
        numeric: true,
        cell: (one: Class) => <Money amount={one[name][currency] ?? '0'} />,
        total: displayAmount(addAmounts(classes.map((one) => one[name][currency] ?? '0'))),
      })),
    ),
  ];
  return (
    <section aria-label="By class">
      <Title order={2}>By class</Title>
      <DataTable
        caption="Tokens and money by cache class"
        columns={columns}
        rows={classes}
        rowKey={(one) => one.name}
        empty="Nothing was read from the cache, nor written to it."
      />
    </section>
  );
}

function Missed({ misses, tenant, filters }: PartProps & { misses: Misses }) {
  if (misses.prompt_tokens === 0) return null;
  const shown = misses.data.filter((one) => one.tokens > 0);
  const currencies = [...new Set(shown.flatMap((one) => Object.keys(one.cost)))].sort();
  const places = new Map(shown.map((one, place) => [one.cause, place]));
  const requests = { ...filters, from: misses.start, to: misses.end };
  const columns: Column<Miss>[] = [
    {
      header: 'What became of them',
      cell: (one) => (
        <Group gap={6} wrap="nowrap">
          <Swatch place={places.get(one.cause)!} />
          <div>
            <div>{causeWord(one.cause)}</div>
            <Text size="xs" c="dimmed">
              {causeText(one.cause)}
            </Text>
          </div>
        </Group>
      ),
      total: 'All prompt tokens',
    },
    {
      header: 'Tokens',
      numeric: true,
      cell: (one) => displayCount(one.tokens),
      total: displayCount(shown.reduce((sum, one) => sum + one.tokens, 0)),
    },
    {
      header: 'Share',
      numeric: true,
      cell: (one) => `${one.share}\u00a0%`,
      total: `${addAmounts(misses.data.map((one) => one.share))}\u00a0%`,
    },
    {
      header: 'Requests',
      numeric: true,
      cell: (one) => (one.requests === null ? '–' : displayCount(one.requests)),
    },
    ...currencies.map((currency) => ({
      header: `Cost beyond reading, ${currency}`,
      numeric: true,
      cell: (one: Miss) => (one.cost[currency] === undefined ? '–' : <Money amount={one.cost[currency]} />),
      total: displayAmount(addAmounts(shown.map((one) => one.cost[currency] ?? '0'))),
    })),
  ];
  return (
    <section aria-label="Why prompts missed">
      <Title order={2}>Where the prompts’ tokens went</Title>
      <PartsBar
        parts={shown.map((one) => one.tokens / misses.prompt_tokens)}
        label={shown.map((one) => `${causeWord(one.cause)} ${one.share} %`).join(', ')}
      />
      <DataTable
        caption="Tokens of prompts by what became of them"
        columns={columns}
        rows={shown}
        rowKey={(one) => one.cause}
        empty="There were no prompts."
      />
      <Anchor size="sm" href={`/console/tenants/${tenant}/requests?${new URLSearchParams(definedOf(requests))}`}>
        The requests of these days: each says for every token why it missed
      </Anchor>
    </section>
  );
}

function definedOf(filters: UsageFilters): Record<string, string> {
  return Object.fromEntries(Object.entries(filters).filter(([, value]) => value !== undefined)) as Record<
    string,
    string
  >;
}
