/** The filters of overview, usage and cache: how they stand in the URL, and what the API is asked with them. */
import { oneOf, type Search, text, type UsageFilters, usageFilters } from '~/app/search';
import { dayAfter, type Days, firstOfMonth, monthOf, wholeDay } from '~/time/days';

export const GROUPS = ['project', 'key', 'model', 'lane'] as const;
export const PLATFORM_GROUPS = ['tenant', 'project', 'model', 'lane'] as const;
export const MEASURES = ['cost', 'tokens', 'requests'] as const;
export const BUCKETS = ['hour', 'day', 'month'] as const;
export const LANES = ['interactive', 'standard', 'batch'] as const;

export type GroupName = (typeof GROUPS)[number] | (typeof PLATFORM_GROUPS)[number];
export type Measure = (typeof MEASURES)[number];
export type Bucket = (typeof BUCKETS)[number];

/** What the usage explorer shows. `group` and `then` are what lines are made of; `view` is chart or table. */
export interface UsageSearch extends UsageFilters {
  tenant?: string;
  group?: GroupName;
  then?: GroupName;
  measure?: Measure;
  bucket?: Bucket;
  top?: number;
  compare?: 'previous';
  view?: 'table';
}

/** The search of the usage explorer, of one tenant or of all. */
export function usageSearch(search: Search, groups: readonly GroupName[] = GROUPS): UsageSearch {
  const found: UsageSearch = usageFilters(search);
  const tenant = text(search, 'tenant');
  if (tenant !== undefined) found.tenant = tenant;
  found.group = oneOf(search, 'group', groups);
  found.then = oneOf(search, 'then', groups);
  if (found.group === undefined || found.then === found.group) found.then = undefined;
  found.measure = oneOf(search, 'measure', MEASURES);
  found.bucket = oneOf(search, 'bucket', BUCKETS);
  found.compare = oneOf(search, 'compare', ['previous'] as const);
  found.view = oneOf(search, 'view', ['table'] as const);
  const top = Number(text(search, 'top'));
  if (Number.isInteger(top) && top >= 1 && top <= 50) found.top = top;
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined)) as UsageSearch;
}

/** The span of a query: a month as `period`, which is what is billed in it, or two instants. */
export interface Span {
  period?: string;
  since?: string;
  until?: string;
}

/**
 * The span that filters ask for; nothing for this month, which is the API's own. A whole month of the calendar is
 * asked for as a period, so that its sums are those of its invoice.
 */
export function spanOf({ from, to }: Pick<UsageFilters, 'from' | 'to'>): Span {
  const since = instantOf(from);
  const until = instantOf(to);
  if (since === undefined && until === undefined) return {};
  if (since !== undefined && until !== undefined) {
    const first = firstOfMonth(since.slice(0, 10));
    const next = firstOfMonth(first, -1);
    if (Date.parse(since) === Date.parse(first) && Date.parse(until) === Date.parse(next)) {
      return { period: monthOf(first) };
    }
  }
  return { since, until };
}

/** The filters of usage as the API has them, without the span. */
export function onlyOf(search: UsageFilters): {
  project?: string[];
  model?: string[];
  lane?: string[];
  key?: string[];
} {
  const only: Record<string, string[]> = {};
  for (const name of ['project', 'model', 'lane', 'key'] as const) {
    const value = search[name];
    if (value !== undefined) only[name] = [value];
  }
  return only;
}

/** The query of a series. */
export function seriesQuery(search: UsageSearch) {
  const groups = [search.group, search.then].filter((group) => group !== undefined);
  return {
    ...spanOf(search),
    ...onlyOf(search),
    ...(search.tenant === undefined ? {} : { tenant: [search.tenant] }),
    group_by: groups.length > 0 ? groups : undefined,
    measure: search.measure,
    bucket: search.bucket,
    top: search.top,
    compare: search.compare,
  };
}

/** The same query as a path with parameters, for a download. */
export function pathWith(path: string, query: Record<string, unknown>): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined) parameters.append(name, String(each));
    }
  }
  return `${path}?${parameters}`;
}

/** So many days up to today, and today. */
export function lastDays(today: string, days: number): Days {
  return { from: dayAfter(today, 1 - days), to: dayAfter(today) };
}

/** Spans that one chooses by a word. */
export function spanChoices(today: string): { label: string; from?: string; to?: string }[] {
  return [
    { label: 'This month' },
    { label: 'Last month', from: firstOfMonth(today, 1), to: firstOfMonth(today) },
    { label: 'Today', ...wholeDay(today) },
    { label: 'Last 7 days', ...lastDays(today, 7) },
    { label: 'Last 30 days', ...lastDays(today, 30) },
    { label: 'Last 12 months', from: firstOfMonth(today, 11), to: dayAfter(today) },
  ];
}

/** A day or an instant as an instant; undefined where there is none. */
function instantOf(value: string | undefined): string | undefined {
  if (value === undefined) return undefined;
  const instant = new Date(value);
  return Number.isNaN(instant.getTime()) ? value : instant.toISOString();
}
