/** The columns of money that came in and of disputes, which tenants and operators see alike. */
import type { Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Instant, Money } from '~/components/values';

import { disputeState, receiptState } from './states';

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
