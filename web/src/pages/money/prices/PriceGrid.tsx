/** Tables of prices: the grid of a model, and what a sheet changes. */
import { type Column, DataTable } from '~/components/DataTable';
import { Money } from '~/components/values';
import type { Schema } from '~/api/client';
import { placesOf } from '~/money/decimal';

import { changeOf, columnName, gridOf, meterName, type PriceCell } from './grid';

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

const differenceColumns = (places: number): Column<Difference>[] => [
  { header: 'Meter', cell: ({ meter }) => meterName(meter) },
  { header: 'For', cell: ({ lane, context_from: contextFrom }) => columnName({ lane, contextFrom }) },
  {
    header: 'Before',
    numeric: true,
    cell: ({ before }) => (before === null ? '–' : <Money amount={before} places={places} />),
  },
  {
    header: 'After',
    numeric: true,
    cell: ({ after }) => (after === null ? '–' : <Money amount={after} places={places} />),
  },
  { header: 'Change', numeric: true, cell: ({ before, after }) => changeOf(before, after) },
];

export function DifferenceTable({ caption, rows }: { caption: string; rows: readonly Difference[] }) {
  const places = placesOf(rows.flatMap(({ before, after }) => [before, after].filter((price) => price !== null)));
  return (
    <DataTable
      caption={caption}
      columns={differenceColumns(places)}
      rows={rows}
      rowKey={(row) => `${row.meter} ${row.lane} ${row.context_from}`}
      empty="It changes no price."
    />
  );
}
