/** The grid of a model's prices: meters × (lane × context tier), and what a proposal changes of it. */

export interface PriceCell {
  meter: string;
  lane: string;
  context_from: number;
  price: string;
}

/** A column of the grid. Lane `*` is every lane without prices of its own. */
export interface GridColumn {
  lane: string;
  contextFrom: number;
}

export interface Grid {
  columns: GridColumn[];
  meters: string[];
  /** The price of a cell, as a decimal string; undefined where there is none. */
  price: (meter: string, column: GridColumn) => string | undefined;
}

const LANES = ['*', 'interactive', 'standard', 'batch'];

/** The key of a cell. */
export function cellKey(meter: string, lane: string, contextFrom: number): string {
  return `${meter} ${lane} ${contextFrom}`;
}

/** The grid of some cells: columns by lane and tier, meters in the order in which they come. */
export function gridOf(cells: readonly PriceCell[]): Grid {
  const prices = new Map(cells.map((cell) => [cellKey(cell.meter, cell.lane, cell.context_from), cell.price]));
  const columns = new Map<string, GridColumn>();
  for (const { lane, context_from: contextFrom } of cells) columns.set(`${lane} ${contextFrom}`, { lane, contextFrom });
  return {
    columns: [...columns.values()].sort(
      (one, other) => LANES.indexOf(one.lane) - LANES.indexOf(other.lane) || one.contextFrom - other.contextFrom,
    ),
    meters: [...new Set(cells.map((cell) => cell.meter))],
    price: (meter, { lane, contextFrom }) => prices.get(cellKey(meter, lane, contextFrom)),
  };
}

/** A column in words: "every lane", "batch, from 200 000 tokens". */
export function columnName({ lane, contextFrom }: GridColumn): string {
  const words = lane === '*' ? 'every lane' : lane;
  return contextFrom === 0 ? words : `${words}, prompts from ${contextFrom} tokens`;
}

/** A meter in words: `read_5m` is "read 5m". */
export function meterName(meter: string): string {
  return meter.replaceAll('_', ' ');
}

const PRICE = /^(\d{1,12})(?:\.(\d{1,6}))?$/;

/** A price in micro-units per million; undefined for a text that is no price. */
export function microOf(price: string): bigint | undefined {
  const match = PRICE.exec(price.trim());
  if (match === null) return undefined;
  return BigInt(match[1]! + (match[2] ?? '').padEnd(6, '0'));
}

/** By how much a price changes, in percent with one place, rounded half away from zero: "+12.5 %". */
export function changeOf(before: string | null, after: string | null): string {
  if (before === null) return 'new';
  if (after === null) return 'removed';
  const [was, is] = [microOf(before), microOf(after)];
  if (was === undefined || is === undefined) return '';
  if (was === is) return 'same';
  if (was === 0n) return 'was free';
  const thousandths = 2000n * (is - was);
  const rounded = (thousandths + (thousandths < 0n ? -was : was)) / (2n * was);
  const size = rounded < 0n ? -rounded : rounded;
  return `${is > was ? '+' : '−'}${size / 10n}.${size % 10n} %`;
}
