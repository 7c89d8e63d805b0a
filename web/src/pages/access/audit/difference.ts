/** What a change of an object changed: its fields before and after, nested ones by their place. */
import { formatAmount, parseAmount } from '~/money/decimal';

export interface Difference {
  /** The field's place, such as `limits.requests_per_minute`. */
  field: string;
  /** As it was; null: it was not there. */
  before: string | null;
  after: string | null;
}

type Fields = Record<string, unknown> | null;

/** The fields that differ between two states of an object, in the order in which they are met. */
export function differences(before: Fields, after: Fields): Difference[] {
  const was = flat(before);
  const is = flat(after);
  return [...new Set([...was.keys(), ...is.keys()])].flatMap((field) => {
    const one = { field, before: was.get(field) ?? null, after: is.get(field) ?? null };
    return one.before === one.after ? [] : [one];
  });
}

/** The differences in a line for a list, at most so many of them. */
export function summary(found: readonly Difference[], most = 2): string {
  const shown = found.slice(0, most).map(({ field, before, after }) => {
    if (before === null) return `${field}: ${after}`;
    return after === null ? `${field}: ${before} taken away` : `${field}: ${before} → ${after}`;
  });
  const more = found.length - shown.length;
  return shown.join('; ') + (more > 0 ? `; ${more} more` : '');
}

function flat(value: unknown, place = '', into = new Map<string, string>()): Map<string, string> {
  if (value === null || value === undefined) {
    return into;
  }
  if (typeof value === 'object') {
    for (const [name, inner] of Object.entries(value)) flat(inner, place === '' ? name : `${place}.${name}`, into);
  } else {
    into.set(place, shortest(String(value as string | number | boolean)));
  }
  return into;
}

/** An amount with all its twelve places as people write it; any other text as it is. */
export function shortest(text: string): string {
  return /^-?\d+\.\d{12}$/.test(text) ? formatAmount(parseAmount(text)) : text;
}
