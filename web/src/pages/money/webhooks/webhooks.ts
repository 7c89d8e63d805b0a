/** What pages of webhooks share. */

/** The topics that messages have; an endpoint may subscribe to each. */
export const TOPICS = [
  'balance.overdrawn',
  'batch.cancelled',
  'batch.completed',
  'batch.expired',
  'batch.failed',
  'budget.threshold',
  'invoice.drafted',
  'invoice.finalized',
  'invoice.partially_paid',
  'invoice.paid',
  'invoice.voided',
  'invoice.credited',
  'invoice.uncollectible',
  'credit_note.finalized',
  'top_up.granted',
  'top_up.needs_customer',
  'top_up.declined',
  'auto_top_up.paused',
  'payment.disputed',
];

/** Seconds since the Unix epoch as an instant. */
export function instantOf(seconds: number | null): string | null {
  return seconds === null ? null : new Date(seconds * 1000).toISOString();
}
