/** Reads whole lists: where a sum, a file or a check is made of them, a part of a list would be wrong. */

const MOST_PAGES = 2_000;

interface ListPage {
  data: readonly unknown[];
  has_more: boolean;
}

/** All rows of a list. `read` gets the cursor that `cursorOf` takes from the page before; none for the first page. */
export async function allPages<Page extends ListPage, Cursor>(
  read: (after: Cursor | undefined) => Promise<Page>,
  cursorOf: (page: Page) => Cursor | null | undefined,
): Promise<Page['data'][number][]> {
  const rows: Page['data'][number][] = [];
  let after: Cursor | undefined;
  for (let pages = 0; pages < MOST_PAGES; pages++) {
    const page = await read(after);
    rows.push(...page.data);
    if (!page.has_more) return rows;
    const next = cursorOf(page);
    if (next === null || next === undefined || next === after) throw new Error('The list does not say how it goes on.');
    after = next;
  }
  throw new Error(`The list has more than ${MOST_PAGES} pages; choose a smaller part of it.`);
}
