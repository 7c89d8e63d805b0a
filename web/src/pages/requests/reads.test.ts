import { expect, test } from 'vitest';

import { readsInWords, readsOf } from './reads';

test('billed reads and reused KV are counted apart', () => {
  const reads = readsOf(
    { uncached: 10, read_5m: 64, read_automatic: 32, write_1h: 16, output: 5 },
    { prompt: 122, computed: 58, read_hbm: 48, read_nvme: 16, output: 5 },
  );
  expect(reads).toEqual({
    billed: 96,
    reused: [
      ['device memory', 48],
      ['disk', 16],
    ],
    computed: 58,
  });
  expect(readsInWords(reads.billed, reads.reused)).toMatch(/^32 tokens were billed as read and computed/);
  expect(readsInWords(64, reads.reused)).toMatch(/same/);
  expect(readsInWords(0, reads.reused)).toMatch(/^64 tokens were reused/);
  expect(readsOf({}, {})).toEqual({ billed: 0, reused: [], computed: 0 });
});
