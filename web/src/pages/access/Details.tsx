/** The fields of one object, each a line with its name. */
import { Table } from '@mantine/core';
import type { ReactNode } from 'react';

import { Words } from '~/components/values';

/** Fields without a value are not shown. */
export function Details({ label, fields }: { label: string; fields: readonly (readonly [string, ReactNode])[] }) {
  return (
    <Table withRowBorders={false} verticalSpacing={4} aria-label={label} maw={760}>
      <Table.Tbody>
        {fields
          .filter(([, value]) => value !== null && value !== undefined && value !== false)
          .map(([name, value]) => (
            <Table.Tr key={name}>
              <Table.Th scope="row" w="34%" fw={500} className="wraps" style={{ verticalAlign: 'top' }}>
                {name}
              </Table.Th>
              <Table.Td className="wraps">{typeof value === 'string' ? <Words text={value} /> : value}</Table.Td>
            </Table.Tr>
          ))}
      </Table.Tbody>
    </Table>
  );
}
