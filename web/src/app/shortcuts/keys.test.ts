import { expect, test } from 'vitest';

import { PLATFORM_GROUP, TENANT_GROUPS } from '../navigation';
import { ALL_JUMPS, jumpsTo, meaningOf, rowAfter } from './keys';

const plain = { ctrlKey: false, metaKey: false, altKey: false };

test('each letter leads to one page, and each page of a tenant has one', () => {
  const letters = ALL_JUMPS.map(({ letter }) => letter);
  expect(new Set(letters).size).toBe(letters.length);
  expect(jumpsTo(TENANT_GROUPS)).toHaveLength(TENANT_GROUPS.flatMap(({ pages }) => pages).length);
  expect(jumpsTo([PLATFORM_GROUP]).map(({ page }) => page.label)).toContain('Approvals');
});

test('what keys mean', () => {
  expect(meaningOf({ key: 'j', ...plain }, false)).toBe('next');
  expect(meaningOf({ key: 'j', ...plain }, true)).toEqual({ letter: 'j' });
  expect(meaningOf({ key: 'Escape', ...plain }, true)).toBe('leave');
  expect(meaningOf({ key: 'x', ...plain }, false)).toBeNull();
  expect(meaningOf({ key: 'constructor', ...plain }, false)).toBeNull();
  expect(meaningOf({ key: '/', ...plain, ctrlKey: true }, false)).toBeNull();
});

test('rows are walked from end to end and not beyond', () => {
  expect([rowAfter(-1, 3, 'next'), rowAfter(-1, 3, 'previous'), rowAfter(-1, 0, 'next')]).toEqual([0, 2, -1]);
  expect([rowAfter(0, 3, 'next'), rowAfter(2, 3, 'next'), rowAfter(0, 3, 'previous')]).toEqual([1, 2, 0]);
});
