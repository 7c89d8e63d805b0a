/**
 * An invoice's canonical JSON (RFC 8785), as far as it is verified. Amounts are integers of minor units, below 2⁵³ as
 * the form promises; exact amounts and units are texts of integers, in pico-units.
 */

export interface DocumentLine {
  kind: string;
  text: string;
  price: number;
  units: string;
  unit: string;
  exact: string;
  net: number;
  category: string;
  rate: number;
  of: number;
}

export interface DocumentTax {
  category: string;
  rate: number;
  net: number;
  tax: number;
}

export interface InvoiceDocument {
  kind: 'invoice' | 'credit_note' | 'advance';
  number: string;
  period: string;
  currency: string;
  lines: DocumentLine[];
  taxes: DocumentTax[];
  net: number;
  tax: number;
  gross: number;
  prepaid: number;
  payable: number;
  deductions?: { number: string; tax: number }[];
  drawn?: number;
  carry_in: string;
  carry_out: string;
  previous: string;
}

/** The document of a canonical JSON. Throws Error if it is none. */
export function parseDocument(text: string): InvoiceDocument {
  const found: unknown = JSON.parse(text);
  if (typeof found !== 'object' || found === null || !Array.isArray((found as InvoiceDocument).lines)) {
    throw new Error('The JSON is no invoice.');
  }
  return found as InvoiceDocument;
}

/** The canonical JSON of a value of integers, texts, lists and objects with ASCII names. */
export function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
    return `{${entries.map(([name, item]) => `${JSON.stringify(name)}:${canonical(item)}`).join(',')}}`;
  }
  return JSON.stringify(value);
}

const DIGITS: Record<number, string> = {
  0: 'BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF',
  3: 'BHD IQD JOD KWD LYD OMR TND',
  4: 'CLF UYW',
};

/** Pico-units of a currency's minor unit (ISO 4217): of a cent 10¹⁰. */
export function minorUnit(currency: string): bigint {
  const special = Object.entries(DIGITS).find(([, currencies]) => currencies.split(' ').includes(currency));
  return 10n ** (12n - BigInt(special?.[0] ?? 2));
}

/** How many units an amount is, rounded half away from zero. */
export function roundHalfUp(amount: bigint, unit: bigint): bigint {
  const whole = (2n * (amount < 0n ? -amount : amount) + unit) / (2n * unit);
  return amount < 0n ? -whole : whole;
}
