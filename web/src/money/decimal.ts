/**
 * Exact decimal amounts. The API writes money as decimal strings of at most 12 places (1 pico); a float would round
 * them, so they are BigInt everywhere: an amount is a count of pico, 10⁻¹² of the currency's unit.
 */

const PLACES = 12;
const SHAPE = /^(-?)(\d+)(?:\.(\d{1,12}))?$/;

/** The pico of a decimal string, such as `"-1.25"`. Throws RangeError for anything else. */
export function parseAmount(text: string): bigint {
  const match = SHAPE.exec(text);
  if (match === null) throw new RangeError(`${JSON.stringify(text)} is no decimal amount`);
  const [, sign, whole, fraction = ''] = match;
  const pico = BigInt(whole + fraction.padEnd(PLACES, '0'));
  return sign === '-' ? -pico : pico;
}

/** The shortest decimal string of an amount, as the API writes it. */
export function formatAmount(pico: bigint): string {
  const [sign, whole, fraction] = split(pico);
  const shortest = fraction.replace(/0+$/, '');
  return `${sign}${whole}${shortest && `.${shortest}`}`;
}

/** The sum of decimal strings, as a decimal string. */
export function addAmounts(amounts: Iterable<string>): string {
  let sum = 0n;
  for (const amount of amounts) sum += parseAmount(amount);
  return formatAmount(sum);
}

/** Less than zero, zero or more than zero, as `one` is less than, equal to or more than `other`. */
export function compareAmounts(one: string, other: string): number {
  const difference = parseAmount(one) - parseAmount(other);
  return difference < 0n ? -1 : difference > 0n ? 1 : 0;
}

/**
 * An amount for people: thousands grouped, at least two places, and as many more as it has. With `places` it is rounded
 * half away from zero to so many; the caller shows the exact amount elsewhere then.
 */
export function displayAmount(text: string, places?: number): string {
  let pico = parseAmount(text);
  if (places !== undefined) {
    const unit = 10n ** BigInt(PLACES - places);
    const half = pico < 0n ? -unit / 2n : unit / 2n;
    pico = ((pico + half) / unit) * unit;
  }
  const [sign, whole, fraction] = split(pico);
  const kept = places === undefined ? fraction.replace(/0+$/, '').padEnd(2, '0') : fraction.slice(0, places);
  return `${sign === '-' ? '−' : ''}${group(whole)}${kept && `.${kept}`}`;
}

/** How many decimals show each of some amounts exactly: those of the longest, and two at least. */
export function placesOf(amounts: Iterable<string>): number {
  return Math.max(2, ...[...amounts].map((amount) => (formatAmount(parseAmount(amount)).split('.')[1] ?? '').length));
}

/** A count with its thousands grouped. */
export function displayCount(count: number | bigint): string {
  return count < 0 ? `−${group(String(-count))}` : group(String(count));
}

/** The part of 1 that an amount is of another, for the length of a bar alone; never shown as a number of money. */
export function shareOf(part: string, whole: string): number {
  const total = parseAmount(whole);
  if (total === 0n) return 0;
  return Number((parseAmount(part) * 10_000n) / total) / 10_000;
}

function split(pico: bigint): [sign: string, whole: string, fraction: string] {
  const digits = String(pico < 0n ? -pico : pico).padStart(PLACES + 1, '0');
  return [pico < 0n ? '-' : '', digits.slice(0, -PLACES), digits.slice(-PLACES)];
}

function group(digits: string): string {
  return digits.replace(/\B(?=(\d{3})+$)/g, '\u202f');
}
