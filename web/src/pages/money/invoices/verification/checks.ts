/**
 * What makes an invoice true, each as a check of its own: pure functions, so that each can be tried with an invoice that
 * is false. All amounts are BigInt.
 */
import { formatAmount, parseAmount } from '~/money/decimal';

import { canonical, type InvoiceDocument, minorUnit, roundHalfUp } from './document';

/** A check, and the first difference that it found; none: it holds. */
export interface Check {
  name: string;
  /** What was compared. */
  about: string;
  difference?: string;
}

/** Units and their exact amount, as the API writes them. */
export interface Sum {
  units: number;
  exact: string;
}

/** What the API says of an invoice outside of the document. */
export interface Stated {
  number: string | null;
  net: string;
  tax: string;
  gross: string;
  prepaid: string;
  payable: string;
}

const AMOUNTS = ['net', 'tax', 'gross', 'prepaid', 'payable'] as const;

/** Two texts, of which the second ought to be the first. */
export function checkSame(name: string, about: string, wanted: string, found: string): Check {
  return wanted === found
    ? { name, about }
    : { name, about, difference: `${found || 'nothing'}, not ${wanted || 'nothing'}` };
}

/** The JSON is the canonical text of what it says, so that its hash means its content. */
export function checkCanonical(text: string): Check {
  const check: Check = { name: 'Form', about: 'The JSON is in its canonical form (RFC 8785).' };
  return canonical(JSON.parse(text)) === text ? check : { ...check, difference: 'It is written in another form.' };
}

/** Each line is its units times its price, rounded once. */
export function checkLines(document: InvoiceDocument): Check {
  const unit = minorUnit(document.currency);
  const about = `${document.lines.length} lines: units × price is the exact amount, which is rounded once.`;
  for (const [index, line] of document.lines.entries()) {
    const name = `Line ${index + 1} (${line.text})`;
    const exact = BigInt(line.exact);
    const priced = BigInt(line.units) * BigInt(line.price);
    if (line.unit !== '' && document.kind === 'invoice' && priced !== exact) {
      const difference = `${name}: ${line.units} × ${line.price} is ${priced} pico, not ${exact}.`;
      return { name: 'Lines', about, difference };
    }
    const rounded = roundHalfUp(exact, unit);
    if (line.kind !== 'carry' && document.kind === 'invoice' && rounded !== BigInt(line.net)) {
      const difference = `${name}: ${exact} pico is ${rounded} minor units, not ${line.net}.`;
      return { name: 'Lines', about, difference };
    }
  }
  return { name: 'Lines', about };
}

/** The tax of each category and rate is that of its lines' sum. */
export function checkTax(document: InvoiceDocument): Check {
  const about = 'The tax of each rate is that of the sum of its lines, rounded once.';
  const nets = new Map<string, bigint>();
  for (const line of document.lines) {
    const key = `${line.category} ${line.rate}`;
    nets.set(key, (nets.get(key) ?? 0n) + BigInt(line.net));
  }
  for (const tax of document.taxes) {
    const key = `${tax.category} ${tax.rate}`;
    const label = `${tax.category} at ${percent(tax.rate)}`;
    const net = nets.get(key) ?? 0n;
    nets.delete(key);
    if (net !== BigInt(tax.net)) {
      return { name: 'Tax', about, difference: `${label}: its lines are ${net} minor units, not ${tax.net}.` };
    }
    const wanted = roundHalfUp(net * BigInt(tax.rate), 10_000n);
    // The last credit note of a rate takes what rounding left of its tax.
    if (document.kind === 'invoice' && wanted !== BigInt(tax.tax)) {
      return { name: 'Tax', about, difference: `${label}: the tax of ${net} is ${wanted}, not ${tax.tax}.` };
    }
  }
  const [left] = [...nets].filter(([, net]) => net !== 0n);
  if (left !== undefined) return { name: 'Tax', about, difference: `No tax is stated for ${left[0]}.` };
  return { name: 'Tax', about };
}

/** Net, tax, gross and what is left to pay follow from the lines, and what rounding left is carried. */
export function checkTotals(document: InvoiceDocument): Check {
  const about = 'Net is the sum of the lines, gross is net and tax, payable is gross less what was paid in advance.';
  const sum = (amounts: Iterable<number>): bigint => [...amounts].reduce((total, amount) => total + BigInt(amount), 0n);
  const wanted: [string, bigint, bigint][] = [
    ['Net', sum(document.lines.map((line) => line.net)), BigInt(document.net)],
    ['Tax', sum(document.taxes.map((tax) => tax.tax)), BigInt(document.tax)],
    ['Gross', BigInt(document.net) + BigInt(document.tax), BigInt(document.gross)],
  ];
  if (document.kind === 'invoice') {
    const advanceTax = sum((document.deductions ?? []).map((deduction) => deduction.tax));
    const paid = BigInt(document.prepaid) + advanceTax + BigInt(document.drawn ?? 0);
    wanted.push(['Payable', BigInt(document.gross) - paid, BigInt(document.payable)]);
    const exact = document.lines.reduce((total, line) => total + BigInt(line.exact), BigInt(document.carry_in));
    const billed = BigInt(document.net) * minorUnit(document.currency) + BigInt(document.carry_out);
    wanted.push(['Net with what rounding leaves (pico)', exact, billed]);
  }
  const wrong = wanted.find(([, is, said]) => is !== said);
  if (wrong === undefined) return { name: 'Totals', about };
  return { name: 'Totals', about, difference: `${wrong[0]} is ${wrong[1]}, not ${wrong[2]}.` };
}

/** What the list of invoices shows is what the document says. */
export function checkStated(document: InvoiceDocument, stated: Stated): Check {
  const about = 'The amounts on this page are those of the document.';
  if (document.number !== (stated.number ?? '')) {
    return { name: 'Page', about, difference: `The document is ${document.number}, not ${stated.number}.` };
  }
  const unit = minorUnit(document.currency);
  for (const name of AMOUNTS) {
    const written = formatAmount(BigInt(document[name]) * unit);
    if (!sameAmount(written, stated[name])) {
      return { name: 'Page', about, difference: `${name} is ${stated[name]}, the document says ${written}.` };
    }
  }
  return { name: 'Page', about };
}

/** Whether parts add up to their parent, exactly. */
export function sumOf(parts: readonly Sum[]): { units: bigint; pico: bigint } {
  return parts.reduce(
    (total, part) => ({ units: total.units + BigInt(part.units), pico: total.pico + parseAmount(part.exact) }),
    { units: 0n, pico: 0n },
  );
}

/** What parts miss of their parent; nothing if they are it, to the pico. */
export function missing(parent: Sum, parts: readonly Sum[]): string | undefined {
  const { units, pico } = sumOf(parts);
  if (units !== BigInt(parent.units)) return `${units} units, not ${parent.units}`;
  if (pico !== parseAmount(parent.exact)) return `${formatAmount(pico)}, not ${parent.exact}`;
  return undefined;
}

function sameAmount(one: string, other: string): boolean {
  return parseAmount(one) === parseAmount(other);
}

function percent(rate: number): string {
  return `${Math.floor(rate / 100)}.${String(rate % 100).padStart(2, '0')} %`;
}
