/** Tables of prices: the grid of a model, and what a sheet changes. */
import { type Column, DataTable } from '~/components/DataTable';
import { Money } from '~/components/values';
import type { Schema } from '~/api/client';

import { changeOf, columnName, gridOf, meterName, type PriceCell } from './grid';

interface PriceGridProps {
  caption: string;
  cells: readonly PriceCell[];
}

/** Meters × lanes and context tiers, in units of currency per 1,000,000 units. */
export function PriceGrid({ caption, cells }: PriceGridProps) {
  const grid = gridOf(cells);
  const columns: Column<string>[] = [
    { header: 'Meter', cell: meterName },
    ...grid.columns.map((column) => ({
      header: columnName(column),
      numeric: true,
      cell: (meter: string) => {
        const price = grid.price(meter, column);
        return price === undefined ? '–' : <Money amount={price} />;
      },
    })),
  ];
  return (
    <DataTable caption={caption} columns={columns} rows={grid.meters} rowKey={(meter) => meter} empty="No prices." />
  );
}

type Difference = Schema<'Difference'>;

const DIFFERENCE: Column<Difference>[] = [
  { header: 'Meter', cell: ({ meter }) => meterName(meter) },
  { header: 'For', cell: ({ lane, context_from: contextFrom }) => columnName({ lane, contextFrom }) },
  { header: 'Before', numeric: true, cell: ({ before }) => (before === null ? '–' : <Money amount={before} />) },
  { header: 'After', numeric: true, cell: ({ after }) => (after === null ? '–' : <Money amount={after} />) },
  { header: 'Change', numeric: true, cell: ({ before, after }) => changeOf(before, after) },
];

export function DifferenceTable({ caption, rows }: { caption: string; rows: readonly Difference[] }) {
  return (
    <DataTable
      caption={caption}
      columns={DIFFERENCE}
      rows={rows}
      rowKey={(row) => `${row.meter} ${row.lane} ${row.context_from}`}
      empty="It changes no price."
    />
  );
}
