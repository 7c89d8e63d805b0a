import { expect, test } from 'vitest';

import { isOperator, may, type Me } from './rights';

function user(...rights: Me['rights']): Me {
  return { rights } as Me;
}

test('a role reaches what is below its scope and nothing else', () => {
  const developer = user({ tenant: 'tenant_1', project: 'project_1', permissions: ['keys.write'] });
  expect(may(developer, 'keys.write', 'tenant_1')).toBe(true);
  expect(may(developer, 'keys.write', 'tenant_1', 'project_1')).toBe(true);
  expect(may(developer, 'keys.write', 'tenant_1', 'project_2')).toBe(false);
  expect(may(developer, 'keys.write', 'tenant_2')).toBe(false);
  expect(may(developer, 'keys.read', 'tenant_1')).toBe(false);
  expect(may(developer, 'keys.write')).toBe(false);
});

test('a role at the platform reaches every tenant', () => {
  const operator = user({ tenant: null, project: null, permissions: ['fleet.read'] });
  expect(isOperator(operator)).toBe(true);
  expect(may(operator, 'fleet.read')).toBe(true);
  expect(may(operator, 'fleet.read', 'tenant_9', 'project_9')).toBe(true);
});
