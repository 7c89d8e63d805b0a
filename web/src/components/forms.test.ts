import { expect, test } from 'vitest';

import { Problem } from '~/api/problem';

import { fieldError } from './forms';

const refused = (message: string, param: string): Promise<Problem> =>
  Problem.of(new Response(JSON.stringify({ error: { message, param, code: 'invalid_value' } }), { status: 400 }));

test('a message stands at its field, in words and without a path', async () => {
  const problem = await refused('$.expires_at: it has passed.', '$.expires_at');
  expect(fieldError(problem, 'expires_at')).toBe('It has passed.');
  expect(fieldError(problem, 'expires')).toBeUndefined();
  expect(problem.message).toBe('expires_at: it has passed.');
});

test('what is wrong with a part of a field stands at the field', async () => {
  const problem = await refused("$.networks[1]: 'x' is no network.", '$.networks[1]');
  expect(fieldError(problem, 'networks')).toBe("'x' is no network.");
  expect(fieldError(problem, 'networks[0]')).toBeUndefined();
  expect(fieldError(Problem.at('terms.tiers[0].steps', 'None.'), 'terms.tiers[0]')).toBe('None.');
});

test('a problem with no field stands at none', async () => {
  const problem = await refused('It has changed meanwhile.', '');
  expect(fieldError(problem, 'name')).toBeUndefined();
  expect(fieldError(null, 'name')).toBeUndefined();
});
