/** A list of invoices and credit notes, with its filters in the URL. */
import { Group, NativeSelect, TextInput } from '@mantine/core';

import type { Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { PagedTable } from '~/components/PagedTable';
import { Money, State } from '~/components/values';

import { WordLink } from '../components/WordLink';
import { DOCUMENT_KINDS, INVOICE_STATES, type InvoiceFilters, KIND_WORDS, STATE_TONES, STATE_WORDS } from './filters';

export type Invoice = Schema<'InvoiceObject'>;

/** A document's number as a link to it; struck through where it is void. */
export function InvoiceLink({ invoice, tenant }: { invoice: Invoice; tenant: string }) {
  const name = invoice.number ?? `draft of ${invoice.period}`;
  return (
    <WordLink
      to="/tenants/$tenant/invoices/$invoice"
      params={{ tenant, invoice: invoice.id }}
      td={invoice.state === 'void' ? 'line-through' : undefined}
    >
      {name}
    </WordLink>
  );
}

export function InvoiceStateBadge({ invoice: { state, kind } }: { invoice: Invoice }) {
  if (kind === 'credit_note' && state === 'finalized') return <State tone="good">issued</State>;
  return <State tone={STATE_TONES[state]}>{STATE_WORDS[state]}</State>;
}

/** The columns of a list of invoices. `tenantOf`: the tenant of the path of a document's page. */
export function invoiceColumns(tenantOf: (invoice: Invoice) => string): Column<Invoice>[] {
  return [
    { header: 'Number', cell: (invoice) => <InvoiceLink invoice={invoice} tenant={tenantOf(invoice)} /> },
    { header: 'State', cell: (invoice) => <InvoiceStateBadge invoice={invoice} /> },
    { header: 'Kind', cell: (invoice) => KIND_WORDS[invoice.kind] },
    { header: 'Period', cell: (invoice) => invoice.period },
    { header: 'Issued', cell: (invoice) => invoice.issued ?? '–' },
    { header: 'Due', cell: (invoice) => invoice.due ?? '–' },
    { header: 'Total', numeric: true, cell: (invoice) => <Money amount={invoice.gross} currency={invoice.currency} /> },
    { header: 'To pay', numeric: true, cell: (invoice) => <Money amount={invoice.left} currency={invoice.currency} /> },
  ];
}

interface InvoiceTableProps {
  caption: string;
  columns: Column<Invoice>[];
  filters: InvoiceFilters;
  setFilters: (filters: InvoiceFilters) => void;
  queryKey: readonly unknown[];
  read: (after: string | undefined, signal: AbortSignal) => Promise<Schema<'InvoiceList'>>;
}

export function InvoiceTable({ caption, columns, filters, setFilters, queryKey, read }: InvoiceTableProps) {
  const filtered = filters.state !== undefined || filters.kind !== undefined || filters.period !== undefined;
  return (
    <>
      <Group align="flex-end">
        <NativeSelect
          label="State"
          data={[
            { value: '', label: 'any' },
            ...INVOICE_STATES.map((state) => ({ value: state, label: STATE_WORDS[state] })),
          ]}
          value={filters.state ?? ''}
          onChange={({ currentTarget: { value } }) =>
            setFilters({ ...filters, state: INVOICE_STATES.find((state) => state === value) })
          }
        />
        <NativeSelect
          label="Kind"
          data={[
            { value: '', label: 'any' },
            ...DOCUMENT_KINDS.map((kind) => ({ value: kind, label: `${KIND_WORDS[kind]}s` })),
          ]}
          value={filters.kind ?? ''}
          onChange={({ currentTarget: { value } }) =>
            setFilters({ ...filters, kind: DOCUMENT_KINDS.find((kind) => kind === value) })
          }
        />
        <TextInput
          label="Period"
          placeholder="2026-11"
          defaultValue={filters.period ?? ''}
          key={filters.period ?? ''}
          w={120}
          onBlur={({ currentTarget: { value } }) => setFilters({ ...filters, period: value || undefined })}
          onKeyDown={(event) => {
            if (event.key === 'Enter') setFilters({ ...filters, period: event.currentTarget.value || undefined });
          }}
        />
      </Group>
      <PagedTable
        caption={caption}
        what="the invoices"
        columns={columns}
        empty={
          filtered
            ? 'No document fits these filters.'
            : 'There are no invoices yet: one is drafted for each month with usage, once the month has closed.'
        }
        queryKey={[...queryKey, filters]}
        read={read}
      />
    </>
  );
}
