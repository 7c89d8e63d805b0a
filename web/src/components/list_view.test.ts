import { expect, test } from 'vitest';

import { listView } from './list_view';

test('a search names how a list is looked at', () => {
  expect(listView({ sort: '-Cost', pages: 3, lane: 'batch' })).toEqual({ sort: '-Cost', pages: 3 });
  expect(listView({ pages: '2.7' })).toEqual({ sort: undefined, pages: 2 });
});

test('what is no number of pages is one page, and a link reads no list without end', () => {
  for (const pages of ['x', -1, 0, 1, undefined, Number.NaN]) expect(listView({ pages }).pages).toBeUndefined();
  expect(listView({ pages: 1e9 }).pages).toBe(100);
});
