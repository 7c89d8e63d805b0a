/** A table of objects. It alone scrolls sideways on a narrow screen; everything else wraps. */
import { Group, Table, Text, UnstyledButton } from '@mantine/core';
import { IconArrowDown, IconArrowUp } from '@tabler/icons-react';
import { type ReactNode, useState } from 'react';

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

interface Sorting {
  header: string;
  down: boolean;
}

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
  const [sorting, setSorting] = useState<Sorting>();
  if (rows.length === 0) return <div>{typeof empty === 'string' ? <Text c="dimmed">{empty}</Text> : empty}</div>;
  const by = columns.find((column) => column.header === sorting?.header)?.sort;
  const shown = by === undefined ? rows : sorted(rows, by, sorting!.down);
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
                aria-sort={sorting?.header === column.header ? (sorting.down ? 'descending' : 'ascending') : undefined}
              >
                {column.sort === undefined ? (
                  column.header
                ) : (
                  <SortButton header={column.header} sorting={sorting} set={setSorting} numeric={column.numeric} />
                )}
              </Table.Th>
            ))}
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {shown.map((row) => (
            <Table.Tr key={rowKey(row)}>
              {columns.map((column) => (
                <Table.Td key={column.header} className={column.numeric ? 'numeric' : undefined}>
                  {column.cell(row)}
                </Table.Td>
              ))}
            </Table.Tr>
          ))}
        </Table.Tbody>
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

interface SortButtonProps {
  header: string;
  sorting: Sorting | undefined;
  set: (sorting: Sorting | undefined) => void;
  numeric: boolean | undefined;
}

/** Sorts by a column: numbers from the greatest at first, texts from the least; pressed a third time, as they came. */
function SortButton({ header, sorting, set, numeric = false }: SortButtonProps) {
  const active = sorting?.header === header ? sorting : undefined;
  const next =
    active === undefined ? { header, down: numeric } : active.down === numeric ? { header, down: !numeric } : undefined;
  const Arrow = active?.down ? IconArrowDown : IconArrowUp;
  return (
    <UnstyledButton fw={700} fz="inherit" onClick={() => set(next)}>
      <Group gap={2} wrap="nowrap" justify={numeric ? 'flex-end' : undefined}>
        {!numeric && header}
        <Arrow size={14} aria-hidden style={{ visibility: active === undefined ? 'hidden' : undefined }} />
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
