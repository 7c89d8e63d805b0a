import { expect, test } from 'vitest';

import type { Me } from '~/access/rights';

import { rolesToGive, scopesToGive } from './roles';

function user(role: 'owner' | 'admin', permissions: string[], tenant: string | null = 't1'): Me {
  const at = { tenant, project: null };
  return { memberships: [{ role, ...at }], rights: [{ ...at, permissions }] } as unknown as Me;
}

test('only owners make owners, there or at the platform', () => {
  expect(rolesToGive(user('owner', []), 't1').map((role) => role.value)).toContain('owner');
  expect(rolesToGive(user('owner', [], null), 't2').map((role) => role.value)).toContain('owner');
  expect(rolesToGive(user('owner', []), 't2').map((role) => role.value)).not.toContain('owner');
  expect(rolesToGive(user('admin', []), 't1').map((role) => role.value)).toEqual(['admin', 'developer', 'viewer']);
});

test('a key gives no more than its maker has', () => {
  const me = user('admin', ['inference', 'keys.read', 'keys.write', 'usage.read']);
  expect(scopesToGive(me, 't1', true)).toEqual(['inference', 'usage.read']);
  expect(scopesToGive(me, 't1', false)).toEqual([
    ...['read', 'keys', 'usage'],
    ...['inference', 'keys.read', 'keys.write', 'usage.read'],
  ]);
  expect(scopesToGive(me, 't2', true)).toEqual([]);
});
