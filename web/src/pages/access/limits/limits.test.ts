import { expect, test } from 'vitest';

import { type Limits, newLimits, typedOf } from './limits';

test('limits go through a form and come back', () => {
  const limits = { requests_per_minute: 600, input_tokens_per_minute: null, concurrent_requests: 32 } as Limits;
  const typed = typedOf({ ...limits, output_tokens_per_minute: 0 });
  expect(typed).toEqual({
    ...{ requests_per_minute: '600', input_tokens_per_minute: '' },
    ...{ output_tokens_per_minute: '0', concurrent_requests: '32' },
  });
  expect(newLimits(typed, 'why')).toEqual({
    ...{ requests_per_minute: 600, input_tokens_per_minute: null },
    ...{ output_tokens_per_minute: 0, concurrent_requests: 32, reason: 'why' },
  });
});

test('spaces between thousands are no part of a count, and what is none is left to the server', () => {
  const typed = { ...typedOf(null), requests_per_minute: '200 000', concurrent_requests: '1.5' };
  expect(newLimits(typed, '')).toMatchObject({ requests_per_minute: 200_000, concurrent_requests: '1.5' });
});
