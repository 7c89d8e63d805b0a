import { expect, test } from 'vitest';

import type { Me } from '~/access/rights';

import { invitationsPath, mayAt, membersPath } from './scope';

test('paths of the platform, a tenant and a project', () => {
  expect(membersPath({})).toBe('/admin/v1/members');
  expect(invitationsPath({ tenant: 'acme' })).toBe('/admin/v1/tenants/acme/invitations');
  expect(membersPath({ tenant: '../x', project: 'a/b?' })).toBe('/admin/v1/tenants/..%2Fx/projects/a%2Fb%3F/members');
});

test('a role in one project gives nothing at its tenant', () => {
  const me = {
    rights: [{ tenant: 't1', project: 'p1', permissions: ['members.write'] }],
  } as unknown as Me;
  const project = { tenant: 'acme', tenantId: 't1', project: 'a', projectId: 'p1' };
  expect(mayAt(me, 'members.write', project)).toBe(true);
  expect(mayAt(me, 'members.write', { ...project, projectId: 'p2' })).toBe(false);
  expect(mayAt(me, 'members.write', { tenant: 'acme', tenantId: 't1' })).toBe(false);
  expect(mayAt(me, 'members.write', {})).toBe(false);
});
