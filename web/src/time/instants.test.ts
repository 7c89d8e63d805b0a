import { expect, test } from 'vitest';

import { displayDistance, displayDuration, displayInstant } from './instants';

test('instants are shown in UTC', () => {
  expect(displayInstant('2026-11-23T05:33:07.123456Z')).toBe('2026-11-23 05:33:07 UTC');
  expect(displayInstant('2026-11-23T05:33:07+02:00', { seconds: false })).toBe('2026-11-23 03:33 UTC');
});

test('distances are rounded down to one unit', () => {
  const now = Date.UTC(2026, 10, 23, 12);
  expect(displayDistance('2026-11-23T11:56:30Z', now)).toBe('3 min ago');
  expect(displayDistance('2026-11-25T12:00:00Z', now)).toBe('in 2 d');
  expect(displayDuration(999)).toBe('999 ms');
});
