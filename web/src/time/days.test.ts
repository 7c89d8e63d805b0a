import { expect, test } from 'vitest';

import { dayAfter, dayOf, firstOfMonth, monthOf, startOf, wholeDay } from './days';

test('days are of UTC, over the ends of months and years', () => {
  expect(dayOf('2026-11-23T23:59:59.999Z')).toBe('2026-11-23');
  expect(dayOf('2026-11-24T00:30:00+02:00')).toBe('2026-11-23');
  expect(dayAfter('2026-12-31')).toBe('2027-01-01');
  expect(dayAfter('2028-03-01', -1)).toBe('2028-02-29');
  expect(wholeDay('2026-02-28')).toEqual({ from: '2026-02-28', to: '2026-03-01' });
  expect(startOf('2026-11-23')).toBe('2026-11-23T00:00:00Z');
});

test('months before a day', () => {
  expect(monthOf('2026-01-31')).toBe('2026-01');
  expect(monthOf('2026-01-31', 1)).toBe('2025-12');
  expect(firstOfMonth('2026-03-31', 1)).toBe('2026-02-01');
  expect(firstOfMonth('2026-11-23', 11)).toBe('2025-12-01');
});
