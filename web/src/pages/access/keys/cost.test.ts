import { expect, test } from 'vitest';

import { costsOf } from './cost';

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
