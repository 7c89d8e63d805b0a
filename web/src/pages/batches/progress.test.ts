import { expect, test } from 'vitest';

import { displayBytes, partsOf, progressText } from './progress';

const counts = { total: 200, left: 60, completed: 100, failed: 20, cancelled: 15, expired: 5 };

test('a bar has the parts that are there', () => {
  expect(partsOf(counts).map(({ name, lines, share }) => [name, lines, share])).toEqual([
    ['completed', 100, 50],
    ['failed', 20, 10],
    ['not run', 20, 10],
  ]);
  expect(partsOf({ total: 0, left: 0, completed: 0, failed: 0, cancelled: 0, expired: 0 })).toEqual([]);
});

test('progress is said in words', () => {
  expect(progressText(counts)).toBe('140 of 200, 20 failed');
  expect(progressText({ ...counts, failed: 0, completed: 120 })).toBe('140 of 200');
  expect(progressText({ ...counts, total: 0 })).toBe('no lines yet');
});

test('bytes are shown in a unit with few digits', () => {
  expect([0, 1023, 1024, 1_572_864, 5_368_709_120].map(displayBytes)).toEqual([
    '0\u00a0B',
    '1023\u00a0B',
    '1.0\u00a0KiB',
    '1.5\u00a0MiB',
    '5.0\u00a0GiB',
  ]);
});
