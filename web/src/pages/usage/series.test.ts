import { describe, expect, it } from 'vitest';

import {
  addSums,
  bucketLabel,
  cellOf,
  changeOf,
  displayMeasure,
  type Line,
  lineName,
  othersOf,
  rowsBehind,
  sentenceOf,
  type Series,
  stacksOf,
  sumOfBucket,
} from './series';

const TINY = '0.000000000001';

function sums(requests: number, cost: string, tokens: Record<string, number> = { uncached: requests * 10, output: 1 }) {
  return { requests, tokens, cost: { USD: cost } };
}

function line(more: Partial<Line>, cells: [number, ReturnType<typeof sums>][]): Line {
  const total = addSums(cells.map(([, cell]) => cell));
  return { rest: false, total, previous: null, cells: cells.map(([bucket, cell]) => ({ bucket, ...cell })), ...more };
}

const lines = [
  line({ model: 'big', previous: sums(4, '2') }, [
    [0, sums(1, '9007199254740993.000000000001')],
    [2, sums(2, TINY)],
  ]),
  line({ rest: true }, [[1, sums(5, '1.5')]]),
];
const total = addSums(lines.map((one) => one.total));
const series = {
  object: 'usage.series',
  bucket: 'day',
  asked: 'day',
  note: '',
  period: null,
  start: '2026-11-20T00:00:00Z',
  end: '2026-11-23T00:00:00Z',
  starts: ['2026-11-20T00:00:00Z', '2026-11-21T00:00:00Z', '2026-11-22T00:00:00Z'],
  group_by: ['model'],
  measure: 'cost',
  as_of: '2026-11-22T09:00:00Z',
  complete_until: '2026-11-22T09:00:00Z',
  complete: 2,
  groups: 8,
  total,
  lines,
  previous: null,
  digest: 'd',
} as unknown as Series;

describe('sums', () => {
  it('are exact where a float would not be', () => {
    expect(total.cost).toEqual({ USD: '9007199254740994.500000000002' });
    expect(total.requests).toBe(8);
    expect(addSums([])).toEqual({ requests: 0, tokens: {}, cost: {} });
  });

  it('of the buckets are those of the lines', () => {
    const buckets = series.starts.map((_, bucket) => sumOfBucket(series, bucket));
    expect(addSums(buckets)).toEqual(total);
    expect(sumOfBucket(series, 1).cost).toEqual({ USD: '1.5' });
    expect(cellOf(lines[1]!, 0)).toEqual({ requests: 0, tokens: {}, cost: {} });
  });
});

describe('lines', () => {
  it('have names, and the rest says how many it adds up', () => {
    expect(othersOf(series)).toBe(7);
    expect(series.lines.map((one) => lineName(one, series.group_by, 7))).toEqual(['big', 'The other 7']);
    expect(lineName(line({}, []), [])).toBe('All');
  });

  it('are the stacks of the chart; tokens that are not grouped are stacked by class', () => {
    expect(stacksOf(series, 'requests', 'USD')).toEqual([
      { name: 'big', heights: [1, 0, 2] },
      { name: 'The other 7', heights: [0, 5, 0] },
    ]);
    expect(stacksOf(series, 'cost', 'USD')[1]!.heights).toEqual([0, 1.5, 0]);
    const alone = { ...series, group_by: [], lines: [lines[0]!], total: lines[0]!.total } as unknown as Series;
    expect(stacksOf(alone, 'tokens', 'USD')).toEqual([
      { name: 'Uncached', heights: [10, 0, 20] },
      { name: 'Output', heights: [1, 0, 1] },
    ]);
  });
});

describe('words', () => {
  it('say what a chart shows', () => {
    expect(sentenceOf(series, 'requests', 'USD')).toBe(
      'Requests from 2026-11-20 to 2026-11-23: 8 in all; most of big with 3.',
    );
    expect(sentenceOf({ ...series, lines: [] }, 'cost', 'USD')).toMatch(/^There is no usage/);
    expect(displayMeasure(sums(1, '1.005'), 'cost', 'USD')).toBe('1.01 USD');
    expect(displayMeasure(sums(1, '1'), 'cost', undefined)).toBe('0.00');
  });

  it('say by how much something changed', () => {
    expect(changeOf(sums(3, '3'), sums(2, '2'), 'cost', 'USD')).toBe('+50 %');
    expect(changeOf(sums(1, '1'), sums(3, '3'), 'requests')).toBe('−67 %');
    expect(changeOf(sums(2, '2'), sums(2, '2'), 'cost', 'USD')).toBe('±0 %');
    expect(changeOf(sums(2, '2'), { requests: 0, tokens: {}, cost: {} }, 'cost', 'USD')).toBe('');
    expect(changeOf(sums(2, '2'), null, 'cost', 'USD')).toBe('');
  });

  it('of the axis are short', () => {
    expect(bucketLabel('2026-11-20T07:00:00Z', 'hour')).toBe('11-20 07:00');
    expect(bucketLabel('2026-11-20T00:00:00Z', 'day')).toBe('11-20');
    expect(bucketLabel('2026-11-01T00:00:00Z', 'month')).toBe('2026-11');
  });
});

describe('the requests behind a figure', () => {
  it('have the filters of the page, of the line and of the bucket', () => {
    const filters = { project: 'default', from: 'not used' };
    expect(rowsBehind(filters, series, lines[0], 1)).toEqual({
      project: 'default',
      model: 'big',
      from: '2026-11-21T00:00:00Z',
      to: '2026-11-22T00:00:00Z',
    });
    expect(rowsBehind({}, series, undefined, 2)).toEqual({ from: '2026-11-22T00:00:00Z', to: '2026-11-23T00:00:00Z' });
    expect(rowsBehind({}, series, lines[1])).toEqual({ from: series.start, to: series.end });
  });
});
