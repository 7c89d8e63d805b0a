import { expect, test } from 'vitest';

import { sorted } from './DataTable';

test('rows are sorted by what a column says, what it says nothing of last', () => {
  const rows = [{ cost: 2n }, { cost: null }, { cost: 10n }, { cost: 1n }];
  expect(sorted(rows, (row) => row.cost, false)).toEqual([{ cost: 1n }, { cost: 2n }, { cost: 10n }, { cost: null }]);
  expect(sorted(rows, (row) => row.cost, true)).toEqual([{ cost: 10n }, { cost: 2n }, { cost: 1n }, { cost: null }]);
  expect(rows[0]).toEqual({ cost: 2n });
});
