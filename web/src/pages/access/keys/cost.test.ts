import { expect, test } from 'vitest';

import { costsOf, monthStart } from './cost';

test('the costs of a key are summed exactly, by currency', () => {
  const bucket = (results: object[]) => ({ object: 'usage.bucket', start: '', end: '', results }) as never;
  const costs = costsOf({
    data: [
      bucket([{ key: 'a', cost: { USD: '0.1', EUR: '1' } }]),
      bucket([
        { key: 'a', cost: { USD: '0.2' } },
        { key: null, cost: { USD: '9' } },
      ]),
    ],
  });
  expect(costs.get('a')).toEqual({ USD: '0.3', EUR: '1' });
  expect(costs.size).toBe(1);
});

test('a month begins in UTC', () => {
  expect(monthStart(new Date('2026-12-01T00:30:00+02:00'))).toBe('2026-11-01T00:00:00Z');
});
