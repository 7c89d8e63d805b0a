import { expect, test } from 'vitest';

import { differences, shortest, summary } from './difference';

test('only what differs is told, nested fields by their place', () => {
  const before = { limit: '5', window: 'month', terms: { percent: 3, list: ['a'] }, gone: 'x', none: null };
  const after = { limit: '7', window: 'month', terms: { percent: 4, list: ['a', 'b'] }, none: null };
  expect(differences(before, after)).toEqual([
    { field: 'limit', before: '5', after: '7' },
    { field: 'terms.percent', before: '3', after: '4' },
    { field: 'gone', before: 'x', after: null },
    { field: 'terms.list.1', before: null, after: 'b' },
  ]);
});

test('what is new or gone has one side', () => {
  expect(differences(null, { a: 1 })).toEqual([{ field: 'a', before: null, after: '1' }]);
  expect(differences({ a: false }, null)).toEqual([{ field: 'a', before: 'false', after: null }]);
  expect(differences(null, null)).toEqual([]);
});

test('a line for a list', () => {
  const found = differences({ a: 1, b: 2 }, { a: 2, c: 3 });
  expect(summary(found)).toBe('a: 1 → 2; b: 2 taken away; 1 more');
  expect(summary(found.slice(2))).toBe('c: 3');
});

test('amounts are as people write them', () => {
  expect(['100.000000000000', '-0.000000000001', '1.50', 'v1.000000000000'].map(shortest)).toEqual([
    ...['100', '-0.000000000001', '1.50', 'v1.000000000000'],
  ]);
});
