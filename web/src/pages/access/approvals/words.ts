/** Changes that wait for a second person, in words. */
import type { Schema } from '~/api/client';
import { addAmounts, displayAmount } from '~/money/decimal';

import { shortest } from '../audit/difference';

export type Change = Schema<'PendingChangeObject'>;
export type Terms = Schema<'TermsObject'>;

const SHEET = 'price_sheet.activate';
const NOT_SHOWN = /(^|\.)(tenant_id|reason|id|invoice_id|request|priority)$/;

/** The number of the price sheet that a change puts in force; undefined for any other change. */
export function sheetOf(change: Pick<Change, 'kind' | 'details'>): number | undefined {
  return change.kind === SHEET ? Number(change.details.sheet) : undefined;
}

/** What a change is, in a few words: "Grant of 5 USD to acme", "Prices of lark, book base". */
export function titleOf(change: Pick<Change, 'kind' | 'details' | 'summary'>, tenant: string): string {
  const { details } = change;
  const money = details.amount === undefined ? '' : `${displayAmount(details.amount)} ${details.currency}`;
  switch (change.kind) {
    case SHEET:
      return capitalized(change.summary.replace(' in book ', ', book '));
    case 'grant.create':
      return `${details.kind === 'paid' ? 'Payment' : 'Grant'} of ${money} to ${tenant}`;
    case 'credit_line.set':
      return `Credit line of ${money} for ${tenant}`;
    case 'terms.set':
      return `Terms of ${tenant} from ${details.from_period} on`;
    case 'credit_note.issue':
      return `${capitalized(change.summary.replace(/^an? /, ''))}, of ${tenant}`;
    case 'platform_setting.set':
      return `Setting ${wordsOf(details.name ?? '')}: ${details.value}`;
    default:
      return capitalized(change.summary);
  }
}

/** For whom a change is. */
export function forWhom(change: Pick<Change, 'kind' | 'tenant_id'>, tenant: string): string {
  if (change.tenant_id !== null) return `the tenant ${tenant}`;
  return change.kind === SHEET ? 'every tenant whose prices come from this book' : 'the whole platform';
}

/** An amount with another added to it; undefined while the first is not known. */
export function raised(before: string | undefined, by: string | undefined): string | undefined {
  return before === undefined || by === undefined ? undefined : addAmounts([before, by]);
}

/** The terms that a change of terms sets, of its details: those have the place of each value in them. */
export function termsOf(details: Change['details']): Terms {
  return (nested(details).terms ?? {}) as Terms;
}

/** The lines of an invoice that a credit note credits; none where it credits all that is left. */
export function creditedLines(details: Change['details']): string[] {
  return Object.keys(details).flatMap((place) => /^amounts\.(\d+)$/.exec(place)?.[1] ?? []);
}

/** What was asked for, field by field, of a change of a kind that has no words of its own. */
export function fieldsOf(details: Change['details']): [name: string, value: string][] {
  return Object.entries(details)
    .filter(([place]) => !NOT_SHOWN.test(place))
    .map(([place, value]) => [wordsOf(place), shortest(value)]);
}

/** `terms.discounts.0.percent` → `terms discounts 1 percent` */
export function wordsOf(place: string): string {
  return place
    .split('.')
    .map((part) => (/^\d+$/.test(part) ? String(Number(part) + 1) : part.replaceAll('_', ' ')))
    .join(' ');
}

/** A sentence with its amounts, which have all twelve places, as people write them. */
export function withShortAmounts(text: string): string {
  return text.replace(/-?\d+\.\d{12}(?!\d)/g, shortest);
}

function capitalized(text: string): string {
  const short = withShortAmounts(text);
  return short.charAt(0).toUpperCase() + short.slice(1);
}

/** Numbers of the details that are no names, amounts or texts, by the last part of their place. */
const COUNTS = new Set(['basis_points', 'up_to']);

/** Values by their place as the object that they were: places of digits are lists. */
function nested(details: Change['details']): Record<string, unknown> {
  const whole: Record<string, unknown> = {};
  for (const [place, text] of Object.entries(details)) {
    const parts = place.split('.');
    let at: Record<string, unknown> = whole;
    for (const [depth, part] of parts.slice(0, -1).entries()) {
      at[part] ??= /^\d+$/.test(parts[depth + 1]!) ? [] : {};
      at = at[part] as Record<string, unknown>;
    }
    const name = parts.at(-1)!;
    at[name] = COUNTS.has(name) ? Number(text) : name === 'invoiced' ? text === 'true' : text;
  }
  return whole;
}
