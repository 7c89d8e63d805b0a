/** A series of usage as charts and tables need it. Amounts stay decimal strings; bars alone are floats. */
import type { Schema } from '~/api/client';
import type { UsageFilters } from '~/app/search';
import { addAmounts, displayAmount, displayCount, parseAmount } from '~/money/decimal';

import type { Bucket, GroupName, Measure } from './search';

export type Series = Schema<'UsageSeries'>;
export type Line = Series['lines'][number];
export type Sums = Schema<'SumsObject'>;

/** A stack of the chart: what it is called, and its height in each bucket. */
export interface Stack {
  name: string;
  heights: number[];
}

const WORDS: Record<string, string> = {
  uncached: 'Uncached',
  read_automatic: 'Read, automatic',
  output: 'Output',
};

/** What a meter is called. */
export function meterName(meter: string): string {
  return WORDS[meter] ?? meter.replace(/^read_/, 'Read, ').replace(/^write_/, 'Write, ');
}

/** What a line is called. */
export function lineName(line: Line, groups: readonly GroupName[], others = 0): string {
  if (line.rest) return others > 0 ? `The other ${others}` : 'The others';
  if (groups.length === 0) return 'All';
  return groups.map((group) => (group === 'key' ? line.key_name : line[group]) ?? 'unknown').join(' · ');
}

/** How many groups the rest adds up. */
export function othersOf(series: Series): number {
  return series.groups - series.lines.filter((line) => !line.rest).length;
}

/** The currencies in which there is any cost. */
export function currenciesOf(sums: Pick<Sums, 'cost'>): string[] {
  return Object.keys(sums.cost).sort();
}

/** All tokens of some sums. */
export function tokensOf(sums: Pick<Sums, 'tokens'>): number {
  return Object.values(sums.tokens).reduce((sum, tokens) => sum + tokens, 0);
}

/** What is measured, as people read it. */
export function displayMeasure(sums: Sums, measure: Measure, currency: string | undefined): string {
  if (measure === 'requests') return displayCount(sums.requests);
  if (measure === 'tokens') return displayCount(tokensOf(sums));
  return currency === undefined ? '0.00' : `${displayAmount(sums.cost[currency] ?? '0', 2)} ${currency}`;
}

/**
 * The stacks of a chart. Tokens that are not grouped are stacked by class. A height is for the eye alone: it is never
 * shown as a number, nor added to another.
 */
export function stacksOf(series: Series, measure: Measure, currency: string | undefined): Stack[] {
  const count = series.starts.length;
  if (measure === 'tokens' && series.group_by.length === 0) {
    return Object.keys(series.total.tokens).map((meter) => ({
      name: meterName(meter),
      heights: fill(count, series.lines[0]?.cells ?? [], (cell) => cell.tokens[meter] ?? 0),
    }));
  }
  const others = othersOf(series);
  return series.lines.map((line) => ({
    name: lineName(line, series.group_by, others),
    heights: fill(count, line.cells, (cell) => heightOf(cell, measure, currency)),
  }));
}

/** The sums of a line in a bucket; zero where it has none. */
export function cellOf(line: Pick<Line, 'cells'>, bucket: number): Sums {
  return line.cells.find((cell) => cell.bucket === bucket) ?? { requests: 0, tokens: {}, cost: {} };
}

/** The sums of all lines in a bucket. */
export function sumOfBucket(series: Series, bucket: number): Sums {
  return addSums(series.lines.map((line) => cellOf(line, bucket)));
}

/** Sums added up, exactly. */
export function addSums(all: readonly Sums[]): Sums {
  const tokens: Record<string, number> = {};
  const costs: Record<string, string[]> = {};
  let requests = 0;
  for (const one of all) {
    requests += one.requests;
    for (const [meter, count] of Object.entries(one.tokens)) tokens[meter] = (tokens[meter] ?? 0) + count;
    for (const [currency, cost] of Object.entries(one.cost)) (costs[currency] ??= []).push(cost);
  }
  const cost = Object.fromEntries(Object.entries(costs).map(([currency, each]) => [currency, addAmounts(each)]));
  return { requests, tokens, cost };
}

/** A bucket's start as an axis has it. */
export function bucketLabel(start: string, bucket: Bucket): string {
  if (bucket === 'month') return start.slice(0, 7);
  return bucket === 'day' ? start.slice(5, 10) : `${start.slice(5, 10)} ${start.slice(11, 16)}`;
}

/** What a chart shows, in one sentence, for who cannot see it. */
export function sentenceOf(series: Series, measure: Measure, currency: string | undefined): string {
  const [first] = series.lines;
  const span = `from ${series.start.slice(0, 10)} to ${series.end.slice(0, 10)}`;
  if (first === undefined) return `There is no usage ${span}.`;
  const total = displayMeasure(series.total, measure, currency);
  const what = { cost: 'Cost', tokens: 'Tokens', requests: 'Requests' }[measure];
  let text = `${what} ${span}: ${total} in all`;
  if (series.previous) text += `, ${displayMeasure(series.previous.total, measure, currency)} in the span before`;
  if (series.group_by.length > 0) {
    const most = displayMeasure(first.total, measure, currency);
    text += `; most of ${lineName(first, series.group_by, othersOf(series))} with ${most}`;
  }
  return `${text}.`;
}

/**
 * By how much something changed since the span before, in per cent rounded to whole ones: `+12 %`. Nothing where there
 * was none before.
 */
export function changeOf(now: Sums, before: Sums | null | undefined, measure: Measure, currency?: string): string {
  if (before === null || before === undefined) return '';
  const [one, other] = [exact(now, measure, currency), exact(before, measure, currency)];
  if (other === 0n) return '';
  const twice = ((one - other) * 200n) / other;
  const percent = (twice + (twice < 0n ? -1n : 1n)) / 2n;
  return `${percent > 0n ? '+' : percent < 0n ? '−' : '±'}${String(percent).replace('-', '')} %`;
}

/** The filters of the requests that make a figure: those of the page, and the line and bucket that it stands in. */
export function rowsBehind(
  filters: UsageFilters,
  series: Pick<Series, 'starts' | 'start' | 'end' | 'group_by'>,
  line?: Line,
  bucket?: number,
): UsageFilters {
  const found: UsageFilters = { ...pick(filters), from: series.start, to: series.end };
  if (bucket !== undefined) {
    found.from = series.starts[bucket];
    found.to = series.starts[bucket + 1] ?? series.end;
  }
  if (line !== undefined && !line.rest) {
    for (const group of series.group_by) {
      const value = line[group];
      if (group !== 'tenant' && typeof value === 'string') found[group] = value;
    }
  }
  return found;
}

function pick({ project, model, lane, key }: UsageFilters): UsageFilters {
  return Object.fromEntries(Object.entries({ project, model, lane, key }).filter(([, value]) => value !== undefined));
}

function exact(sums: Sums, measure: Measure, currency: string | undefined): bigint {
  if (measure === 'requests') return BigInt(sums.requests);
  if (measure === 'tokens') return BigInt(tokensOf(sums));
  return currency === undefined ? 0n : parseAmount(sums.cost[currency] ?? '0');
}

function heightOf(sums: Sums, measure: Measure, currency: string | undefined): number {
  if (measure !== 'cost') return Number(exact(sums, measure, currency));
  return Number(exact(sums, measure, currency) / 1_000_000n) / 1_000_000; // not money: the length of a bar
}

function fill(count: number, cells: Line['cells'], height: (cell: Line['cells'][number]) => number): number[] {
  const heights = new Array<number>(count).fill(0);
  for (const cell of cells) heights[cell.bucket] = height(cell);
  return heights;
}
