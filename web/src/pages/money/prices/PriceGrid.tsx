/** Tables of prices: the grid of a model, and what a sheet changes. */
import { Text } from '@mantine/core';

import { type Column, DataTable } from '~/components/DataTable';
import { Money } from '~/components/values';
import type { Schema } from '~/api/client';
import { placesOf } from '~/money/decimal';

import { cellKey, changeOf, columnName, gridOf, meterName, type PriceCell } from './grid';

interface PriceGridProps {
  caption: string;
  cells: readonly PriceCell[];
}

/** Meters × lanes and context tiers, in units of currency per 1,000,000 units. */
export function PriceGrid({ caption, cells }: PriceGridProps) {
  const grid = gridOf(cells);
  const places = placesOf(cells.map((cell) => cell.price));
  const columns: Column<string>[] = [
    { header: 'Meter', cell: meterName },
    ...grid.columns.map((column) => ({
      header: columnName(column),
      numeric: true,
      cell: (meter: string) => {
        const price = grid.price(meter, column);
        return price === undefined ? '–' : <Money amount={price} places={places} />;
      },
    })),
  ];
  return (
    <DataTable caption={caption} columns={columns} rows={grid.meters} rowKey={(meter) => meter} empty="No prices." />
  );
}

type Difference = Schema<'Difference'>;

/** What a sheet changes: meters × lanes and context tiers, each price before and after. */
export function DifferenceTable({ caption, rows }: { caption: string; rows: readonly Difference[] }) {
  const places = placesOf(rows.flatMap(({ before, after }) => [before, after].filter((price) => price !== null)));
  const grid = gridOf(rows.map((row) => ({ ...row, price: '0' })));
  const changes = new Map(rows.map((row) => [cellKey(row.meter, row.lane, row.context_from), row]));
  const columns: Column<string>[] = [
    { header: 'Meter', cell: meterName },
    ...grid.columns.map((column) => ({
      header: columnName(column),
      numeric: true,
      cell: (meter: string) => {
        const change = changes.get(cellKey(meter, column.lane, column.contextFrom));
        return change === undefined ? '–' : <Change {...change} places={places} />;
      },
    })),
  ];
  return (
    <DataTable
      caption={caption}
      columns={columns}
      rows={grid.meters}
      rowKey={(meter) => meter}
      empty="It changes no price."
    />
  );
}

/** `3.00 → 2.70`, and by how much. */
function Change({ before, after, places }: Pick<Difference, 'before' | 'after'> & { places: number }) {
  return (
    <>
      {before === null ? '–' : <Money amount={before} places={places} />} →{' '}
      {after === null ? '–' : <Money amount={after} places={places} />}
      <Text size="xs" c="dimmed">
        {changeOf(before, after)}
      </Text>
    </>
  );
}
