import { expect, test } from 'vitest';

import { displayLeft, emptyFields, fieldsOf, isUnused, type Key, keyPatch, newKey } from './fields';

const NOW = Date.parse('2026-11-23T00:00:00Z');

function key(fields: Partial<Key>): Key {
  return {
    ...({ state: 'active', last_used_at: null, created_at: '2026-11-01T00:00:00Z', name: 'a', role: null } as Key),
    ...{ project_id: 'p', scopes: null, networks: null, models: ['m'], lanes: null, expires_at: null },
    ...fields,
  };
}

test('nothing chosen is no limit', () => {
  const made = newKey({ ...emptyFields('default'), name: 'search', lanes: ['batch'] });
  expect(made).toMatchObject({ project: 'default', role: null, scopes: null, models: null, lanes: ['batch'] });
  expect(newKey({ ...emptyFields(''), role: 'viewer', models: ['m'] })).toMatchObject({ role: 'viewer', models: null });
});

test('only what differs is changed, and null takes a limit away', () => {
  const before = fieldsOf(key({}));
  expect(keyPatch(before, before)).toEqual({});
  expect(keyPatch(before, { ...before, models: [], expires: '2026-12-01T00:00' })).toEqual({
    models: null,
    expires_at: '2026-12-01T00:00:00Z',
  });
});

test('the end of a key comes back as it was', () => {
  const before = fieldsOf(key({ expires_at: '2026-12-01T09:30:00Z' }));
  expect(before.expires).toBe('2026-12-01T09:30');
});

test.each([
  [{ created_at: '2026-10-01T00:00:00Z' }, true],
  [{ created_at: '2026-11-20T00:00:00Z' }, false],
  [{ created_at: '2026-01-01T00:00:00Z', last_used_at: '2026-11-20T00:00:00Z' }, false],
  [{ created_at: '2026-01-01T00:00:00Z', last_used_at: '2026-10-20T00:00:00Z' }, true],
  [{ created_at: '2026-01-01T00:00:00Z', state: 'revoked' as const }, false],
])('a key with %o is unused: %s', (fields, unused) => {
  expect(isUnused(key(fields), NOW)).toBe(unused);
});

test('what is left of an overlap is told to the second', () => {
  expect([86_399_999, 61_000, 0, -5].map(displayLeft)).toEqual([
    ...['23 h 59 min 59 s', '01 min 01 s', '00 min 00 s', '00 min 00 s'],
  ]);
});
