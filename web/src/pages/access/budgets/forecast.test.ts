import { expect, test } from 'vitest';

import { forecast, passed } from './forecast';

const month = { window: 'month' as const, resets_at: '2026-12-01T00:00:00Z' };

test('half of a month forecasts twice of what was spent, to the pico', () => {
  const now = Date.parse('2026-11-16T00:00:00Z');
  expect(forecast({ ...month, spent: '0.000000000001' }, now)).toBe('0.000000000002');
  expect(forecast({ ...month, spent: '50000.25' }, now)).toBe('100000.5');
});

test('a day is a window too', () => {
  const day = { window: 'day' as const, resets_at: '2026-11-24T00:00:00Z', spent: '3' };
  expect(forecast(day, Date.parse('2026-11-23T06:00:00Z'))).toBe('12');
});

test('nothing is forecast of an open end, of a beginning, or after the end', () => {
  expect(forecast({ window: 'total', resets_at: null, spent: '3' }, 0)).toBeNull();
  expect(forecast({ ...month, spent: '3' }, Date.parse('2026-11-01T12:00:00Z'))).toBeNull();
  expect(forecast({ ...month, spent: '3' }, Date.parse('2026-12-01T00:00:01Z'))).toBeNull();
});

test('thresholds are passed exactly', () => {
  const budget = { thresholds: [100, 50, 80], limit: '10', spent: '8' };
  expect(passed(budget)).toEqual({ passed: [50, 80], next: 100 });
  expect(passed({ ...budget, spent: '7.999999999999' })).toEqual({ passed: [50], next: 80 });
  expect(passed({ ...budget, spent: '10' })).toEqual({ passed: [50, 80, 100], next: null });
});
