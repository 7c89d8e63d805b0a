/** The columns of money that came in, of disputes and of reminders, which tenants and operators see alike. */
import type { Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Instant, Money } from '~/components/values';

import { WordLink } from '../components/WordLink';
import { disputeState, receiptState, reminderState } from './states';

export const RECEIPT_COLUMNS: Column<Schema<'ReceiptObject'>>[] = [
  { header: 'Came in', cell: (receipt) => <Instant at={receipt.received_at} /> },
  { header: 'By', cell: (receipt) => receipt.provider },
  {
    header: 'Amount',
    numeric: true,
    cell: (receipt) => <Money amount={receipt.amount} currency={receipt.currency} />,
  },
  { header: 'State', cell: (receipt) => receiptState(receipt.state) },
  { header: 'For', cell: (receipt) => (receipt.purpose === 'unmatched' ? '–' : receipt.purpose.replace('_', '-')) },
  { header: 'Payer', cell: (receipt) => receipt.payer || '–' },
  { header: 'Reference', cell: (receipt) => receipt.reference || receipt.provider_id },
];

export const DISPUTE_COLUMNS: Column<Schema<'DisputeObject'>>[] = [
  { header: 'Opened', cell: (dispute) => <Instant at={dispute.created_at} /> },
  { header: 'Dispute', cell: (dispute) => dispute.provider_id },
  { header: 'State', cell: (dispute) => disputeState(dispute.state) },
  { header: 'Reason', cell: (dispute) => dispute.reason.replaceAll('_', ' ') },
  {
    header: 'Amount',
    numeric: true,
    cell: (dispute) => <Money amount={dispute.amount} currency={dispute.currency} />,
  },
  {
    header: 'Taken from the balance',
    numeric: true,
    cell: (dispute) => <Money amount={dispute.moved} currency={dispute.currency} />,
  },
];

/** `tenantOf`: the tenant of the path of an invoice's page. */
export function reminderColumns(tenantOf: (tenantId: string) => string): Column<Schema<'ReminderObject'>>[] {
  return [
    { header: 'When', cell: (reminder) => <Instant at={reminder.sent_at ?? reminder.created_at} /> },
    {
      header: 'Invoice',
      cell: (reminder) => (
        <WordLink
          to="/tenants/$tenant/invoices/$invoice"
          params={{ tenant: tenantOf(reminder.tenant_id), invoice: reminder.invoice_id }}
        >
          {reminder.subject || 'its invoice'}
        </WordLink>
      ),
    },
    { header: 'Level', numeric: true, cell: (reminder) => reminder.level },
    { header: 'State', cell: (reminder) => reminderState(reminder.state) },
    { header: 'To', cell: (reminder) => reminder.recipient || '–' },
    { header: 'Why', cell: (reminder) => reminder.problem ?? '–' },
  ];
}
