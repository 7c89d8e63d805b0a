/** The filters of lists of invoices. */
import { oneOf, type Search, text } from '~/app/search';

export const INVOICE_STATES = [
  'draft',
  'finalized',
  'partially_paid',
  'paid',
  'credited',
  'void',
  'uncollectible',
] as const;
export const DOCUMENT_KINDS = ['invoice', 'advance', 'credit_note'] as const;

export type DocumentKind = (typeof DOCUMENT_KINDS)[number];
export type InvoiceState = (typeof INVOICE_STATES)[number];

export interface InvoiceFilters {
  state?: InvoiceState;
  kind?: DocumentKind;
  period?: string;
}

/** The filters of a search. */
export function invoiceFilters(search: Search): InvoiceFilters {
  return {
    state: oneOf(search, 'state', INVOICE_STATES),
    kind: oneOf(search, 'kind', DOCUMENT_KINDS),
    period: text(search, 'period'),
  };
}

/** How far a line is opened: its days, a day's hours, an hour's requests. */
export interface OpenedLine {
  line?: number;
  day?: string;
  hour?: number;
}

/** Each state in people's words. */
export const STATE_WORDS: Record<InvoiceState, string> = {
  draft: 'draft',
  finalized: 'open',
  partially_paid: 'partially paid',
  paid: 'paid',
  credited: 'credited in full',
  void: 'void',
  uncollectible: 'uncollectible',
};

export const STATE_TONES = {
  draft: 'neutral',
  finalized: 'waiting',
  partially_paid: 'waiting',
  paid: 'good',
  credited: 'neutral',
  void: 'neutral',
  uncollectible: 'bad',
} as const;

/** Each kind of document in people's words. An advance-payment invoice is for money that was paid before it is used. */
export const KIND_WORDS: Record<DocumentKind, string> = {
  invoice: 'invoice',
  advance: 'advance payment',
  credit_note: 'credit note',
};
