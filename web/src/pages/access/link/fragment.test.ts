import { expect, test } from 'vitest';

import { parseFragment } from './fragment';

test.each(['invitation', 'password_reset', 'sign_in'])('a link of the kind %s', (kind) => {
  expect(parseFragment(`#${kind}=abc-_9`)).toEqual({ kind, token: 'abc-_9' });
});

test.each(['', '#', '#sign_in', '#sign_in=', '#other=abc', '#sign_in=a=b', '#constructor=x'])('%s is none', (text) => {
  expect(parseFragment(text)).toBeNull();
});
