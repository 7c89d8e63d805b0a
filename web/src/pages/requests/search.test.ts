import { expect, test } from 'vitest';

import { fromInput, idIn, listQuery, requestsSearch, toInput } from './search';

test('a search keeps what it knows and drops the rest', () => {
  const search = { from: '2026-11-01T00:00:00Z', status: 'ok', lane: 'batch', open: 'req_1', other: 'x', model: '' };
  expect(requestsSearch(search)).toEqual({ from: '2026-11-01T00:00:00Z', status: 'ok', lane: 'batch', open: 'req_1' });
  expect(requestsSearch({ status: 'late', key: 7 })).toEqual({ key: '7' });
});

test('filters become the parameters of the list', () => {
  expect(listQuery({ from: 'a', to: 'b', project: 'p', status: 'failed', took: '1.5' })).toEqual({
    since: 'a',
    until: 'b',
    project: ['p'],
    model: undefined,
    lane: undefined,
    key: undefined,
    status: ['failed'],
    min_total_ms: 1500,
  });
  expect(listQuery({}).min_total_ms).toBeUndefined();
  expect(requestsSearch({ took: 'long' })).toEqual({});
  expect(requestsSearch({ took: 2 })).toEqual({ took: '2' });
});

test('instants come back from an input as they went in', () => {
  expect(toInput('2026-11-23T05:33:00Z')).toBe('2026-11-23T05:33');
  expect(fromInput(toInput('2026-11-23T05:33:00Z'))).toBe('2026-11-23T05:33:00Z');
  expect(fromInput('')).toBeUndefined();
  expect(toInput('nonsense')).toBe('');
});

test('an id is found in what was pasted', () => {
  const id = 'req_01934f6e0d2a7b3c8e51a9c4d7f60b12';
  expect(idIn(`  x-request-id: ${id}\n`)).toBe(id);
  expect(idIn('chatcmpl-01934f6e0d2a7b3c8e51a9c4d7f60b12')).toBe('chatcmpl-01934f6e0d2a7b3c8e51a9c4d7f60b12');
  expect(idIn('01934f6e0d2a7b3c8e51a9c4d7f60b12')).toBe('01934f6e0d2a7b3c8e51a9c4d7f60b12');
  expect(idIn('req_12')).toBeUndefined();
});
