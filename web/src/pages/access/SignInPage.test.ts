import { expect, test } from 'vitest';

import { ownPath } from './SignInPage';

test.each([
  [undefined, '/'],
  ['/tenants/acme/keys?project=a', '/tenants/acme/keys?project=a'],
  ['https://evil.example/', '/'],
  ['javascript:alert(1)', '/'],
  ['//evil.example', '/'],
  ['/\\evil.example', '/'],
  ['/\t/evil.example', '/'],
  ['/x/..//evil.example', '/evil.example'],
  ['/.//evil.example', '/evil.example'],
  ['/%2e/%2e%2e///evil.example', '/evil.example'],
])('who signed in from %j goes on to %j', (next, path) => {
  expect(ownPath(next)).toBe(path);
});
