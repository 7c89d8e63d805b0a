/** What a commitment's months will ask for and draw, before its terms are set. */
import type { Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Money } from '~/components/values';

type Month = Schema<'CommitmentMonthObject'>;

const COLUMNS: Column<Month>[] = [
  { header: 'Month', cell: (month) => month.period },
  { header: 'Invoice asks for', numeric: true, cell: (month) => <Money amount={month.asked} /> },
  { header: 'Funded', numeric: true, cell: (month) => <Money amount={month.funded} /> },
  {
    header: 'Drawn',
    numeric: true,
    cell: (month) => (month.drawn === null ? 'by usage' : <Money amount={month.drawn} />),
  },
  { header: 'Left', numeric: true, cell: (month) => <Money amount={month.left} /> },
];

export function CommitmentSchedule({ months }: { months: readonly Month[] }) {
  return (
    <DataTable
      caption="Months of the commitment"
      columns={COLUMNS}
      rows={months}
      rowKey={(month) => month.period}
      empty="The commitment is in force in no month."
    />
  );
}
