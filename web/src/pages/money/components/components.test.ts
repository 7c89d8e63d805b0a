import { describe, expect, it } from 'vitest';

import { allPages } from './all_pages';
import { toCsv } from './csv';
import { uuid7 } from './uuid7';

describe('allPages', () => {
  const pages = [[1, 2], [3, 4], [5]];
  const read = async (after: number | undefined) => {
    const place = after === undefined ? 0 : pages.findIndex((page) => page.at(-1) === after) + 1;
    return { data: pages[place]!, has_more: place < pages.length - 1 };
  };

  it('reads every page once', async () => {
    expect(await allPages(read, (page) => page.data.at(-1))).toEqual([1, 2, 3, 4, 5]);
  });

  it('refuses a part for the whole', async () => {
    await expect(
      allPages(
        async () => ({ data: [1], has_more: true }),
        () => null,
      ),
    ).rejects.toThrow('how it goes on');
    await expect(
      allPages(
        async () => ({ data: [1], has_more: true }),
        () => 7,
      ),
    ).rejects.toThrow('how it goes on');
    await expect(
      allPages(
        () => Promise.reject(new TypeError('offline')),
        () => null,
      ),
    ).rejects.toThrow('offline');
  });
});

describe('toCsv', () => {
  it('quotes what has to be, and lets no spreadsheet evaluate a text', () => {
    const rows = [
      ['-1.25', '=1+1', 'a "b", c'],
      ['@sum', '-x', 'plain'],
    ];
    expect(toCsv(['a', 'b', 'c'], rows)).toBe('a,b,c\r\n-1.25,\'=1+1,"a ""b"", c"\r\n\'@sum,\'-x,plain\r\n');
  });

  it.each(['＝1+1', '＋1', '－1', '＠sum', '\t=1', '\r=1'])('lets no spreadsheet evaluate %j', (text) => {
    expect(toCsv(['a'], [[text]])).toContain(`'${text}`);
  });
});

describe('uuid7', () => {
  it('says its time, its version and its variant', () => {
    const id = uuid7(0x0193_4f6e_0d2a);
    expect(id).toMatch(/^01934f6e-0d2a-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    expect(uuid7(1)).not.toBe(uuid7(1));
  });
});
