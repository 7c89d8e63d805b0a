/** A table of objects. It alone scrolls sideways on a narrow screen; everything else wraps. */
import { Group, Table, Text, UnstyledButton } from '@mantine/core';
import { IconArrowDown, IconArrowUp } from '@tabler/icons-react';
import type { ReactNode } from 'react';

import { useListView } from './list_view';
import { Words } from './values';

export interface Column<Row> {
  header: string;
  cell: (row: Row) => ReactNode;
  /** Numbers stand at the end of their cell. */
  numeric?: boolean;
  /** What the table's last line has in this column. */
  total?: ReactNode;
  /** What rows are sorted by when the header is pressed; without it they are not. Null stands last. */
  sort?: (row: Row) => SortKey;
}

export type SortKey = number | bigint | string | null;

interface DataTableProps<Row> {
  /** What the table has, for screen readers: "Keys of acme". */
  caption: string;
  columns: Column<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row) => string;
  /** What to say, and to do, where there are no rows. */
  empty: ReactNode;
}

export function DataTable<Row>({ caption, columns, rows, rowKey, empty }: DataTableProps<Row>) {
  const [{ sort = '' }, setView] = useListView();
  if (rows.length === 0) return <div>{typeof empty === 'string' ? <Text c="dimmed">{empty}</Text> : empty}</div>;
  const down = sort.startsWith('-');
  const by = columns.find((column) => column.sort !== undefined && column.header === (down ? sort.slice(1) : sort));
  const shown = by?.sort === undefined ? rows : sorted(rows, by.sort, down);
  const hasTotals = columns.some((column) => column.total !== undefined);
  return (
    <Table.ScrollContainer minWidth={0} type="native" tabIndex={0} role="region" aria-label={caption}>
      <Table highlightOnHover verticalSpacing={6} horizontalSpacing="sm">
        <Table.Thead>
          <Table.Tr>
            {columns.map((column) => (
              <Table.Th
                key={column.header}
                scope="col"
                className={column.numeric ? 'numeric' : undefined}
                aria-sort={by === column ? (down ? 'descending' : 'ascending') : undefined}
              >
                {column.sort === undefined ? (
                  column.header
                ) : (
                  <SortButton
                    header={column.header}
                    down={by === column ? down : undefined}
                    set={(next) => setView({ sort: next })}
                    numeric={column.numeric}
                  />
                )}
              </Table.Th>
            ))}
          </Table.Tr>
        </Table.Thead>
        {/* Plain elements: Mantine's own cells take five times as long to draw, of which a list has thousands. */}
        <tbody className="rows">
          {shown.map((row) => (
            <tr key={rowKey(row)}>
              {columns.map((column) => (
                <td key={column.header} className={column.numeric ? 'numeric' : undefined}>
                  {inWords(column.cell(row))}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
        {hasTotals && (
          <Table.Tfoot>
            <Table.Tr>
              {columns.map((column) => (
                <Table.Th key={column.header} className={column.numeric ? 'numeric' : undefined}>
                  {column.total}
                </Table.Th>
              ))}
            </Table.Tr>
          </Table.Tfoot>
        )}
      </Table>
    </Table.ScrollContainer>
  );
}

function inWords(cell: ReactNode): ReactNode {
  return typeof cell === 'string' ? <Words text={cell} /> : cell;
}

interface SortButtonProps {
  header: string;
  /** Whether the rows are sorted by it from the greatest, or from the least; undefined if by another. */
  down: boolean | undefined;
  set: (sort: string | undefined) => void;
  numeric: boolean | undefined;
}

/** Sorts by a column: numbers from the greatest at first, texts from the least; pressed a third time, as they came. */
function SortButton({ header, down, set, numeric = false }: SortButtonProps) {
  const next = down === undefined ? numeric : down === numeric ? !numeric : undefined;
  const Arrow = down ? IconArrowDown : IconArrowUp;
  return (
    <UnstyledButton
      fw={700}
      fz="inherit"
      onClick={() => set(next === undefined ? next : `${next ? '-' : ''}${header}`)}
    >
      <Group gap={2} wrap="nowrap" justify={numeric ? 'flex-end' : undefined}>
        {!numeric && header}
        <Arrow size={14} aria-hidden style={{ visibility: down === undefined ? 'hidden' : undefined }} />
        {numeric && header}
      </Group>
    </UnstyledButton>
  );
}

/** The rows in the order of what `by` says of them. */
export function sorted<Row>(rows: readonly Row[], by: (row: Row) => SortKey, down: boolean): Row[] {
  const compare = (one: SortKey, other: SortKey): number => {
    if (one === null || other === null) return Number(one === null) - Number(other === null);
    const order = one < other ? -1 : one > other ? 1 : 0;
    return down ? -order : order;
  };
  return [...rows].sort((one, other) => compare(by(one), by(other)));
}
