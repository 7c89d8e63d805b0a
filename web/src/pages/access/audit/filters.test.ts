import { expect, test } from 'vitest';

import { auditFilters, auditQuery, csvPath } from './filters';

test('only known filters are taken, and none that is empty', () => {
  expect(auditFilters({ actor: 'Ann', action: '', other: 'x', target_id: 7 })).toEqual({
    actor: 'Ann',
    target_id: '7',
  });
});

test('days are whole days, and instants stay', () => {
  expect(auditQuery({ from: '2026-11-01', to: '2026-11-30', actor: 'Ann' })).toEqual({
    ...{ from: '2026-11-01T00:00:00Z', to: '2026-12-01T00:00:00Z', actor: 'Ann' },
  });
  expect(auditQuery({ from: '2026-11-01T10:00:00Z', to: 'never' })).toEqual({
    ...{ from: '2026-11-01T10:00:00Z', to: 'never' },
  });
});

test('a file has the same filters', () => {
  expect(csvPath({ actor: 'Ann & Bob' })).toBe('/admin/v1/audit?actor=Ann+%26+Bob&format=csv');
});
