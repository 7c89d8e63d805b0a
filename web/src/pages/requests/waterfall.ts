/** What the waterfall shows: bars as shares of the wall time, in words, and whether they add up. */
import type { Schema } from '~/api/client';
import { addAmounts, compareAmounts, displayCount } from '~/money/decimal';
import { displayMicroseconds } from '~/time/instants';

export type Waterfall = Schema<'WaterfallObject'>;
export type Bar = Schema<'WaterfallBar'>;

/** Who took the time: the colour and the pattern of a bar. */
export const PARTIES = ['gateway', 'database', 'replica', 'client', 'failure'] as const;
export type Party = (typeof PARTIES)[number];

const STAGES: Record<string, [label: string, party: Party]> = {
  auth: ['Authentication', 'gateway'],
  body: ['Body', 'client'],
  parse: ['Parse', 'gateway'],
  render: ['Render and tokenize', 'gateway'],
  plan: ['Cache plan', 'gateway'],
  price: ['Price', 'database'],
  limits: ['Rate limits', 'gateway'],
  scope_keys: ['Cache key', 'database'],
  hold: ['Hold', 'database'],
  prefix_wait: ['Same prefix', 'replica'],
  route: ['Route', 'gateway'],
  transfer: ['Transfer', 'gateway'],
  accept: ['Accept', 'replica'],
  queue: ['Queue', 'replica'],
  match: ['Cache match', 'replica'],
  prefill: ['Prefill', 'replica'],
  promise: ['Lease', 'database'],
  decode: ['Decode', 'replica'],
  reader: ['Slow reader', 'client'],
  funds: ['More money', 'database'],
  lost: ['Replica lost', 'failure'],
  retry: ['Retry', 'failure'],
  spool: ['Spool', 'gateway'],
  explain: ['Explanation', 'database'],
  answer: ['Answer', 'client'],
  settle: ['Settlement', 'database'],
  end: ['End', 'gateway'],
  running: ['Running', 'replica'],
};

/** A chunk of the prompt within the bar of its prefill; `left` and `width` as in `ShownBar`. */
interface ShownPart {
  left: number;
  width: number;
  label: string;
}

export interface ShownBar {
  key: string;
  bar: Bar;
  label: string;
  party: Party;
  /** Where it begins and how long it is, in hundredths of the wall time. */
  left: number;
  width: number;
  parts: ShownPart[];
  /** All of it in words. */
  says: string;
}

/** The name of a stage. */
export function stageLabel(stage: string): string {
  return STAGES[stage]?.[0] ?? stage;
}

/** The bars of a waterfall, in order. */
export function shownBars(waterfall: Waterfall): ShownBar[] {
  const wall = Math.max(1, waterfall.wall_us);
  const share = (us: number): number => Math.min(100, Math.max(0, (us * 100) / wall));
  const chunksOf = (bar: Bar): ShownPart[] =>
    waterfall.beside
      .filter((chunk) => chunk.what === 'prefill_chunk' && chunk.attempt === bar.attempt && overlaps(chunk, bar))
      .map((chunk) => ({
        left: share(chunk.start_us),
        width: share(chunk.duration_us),
        label: `${displayCount(chunk.computed_tokens)} tokens in ${displayMicroseconds(chunk.duration_us)}`,
      }));
  return waterfall.bars.map((bar, index) => ({
    key: `${index} ${bar.stage}`,
    bar,
    label: stageLabel(bar.stage),
    party: STAGES[bar.stage]?.[1] ?? 'gateway',
    left: share(bar.start_us),
    width: share(bar.duration_us),
    parts: bar.stage === 'prefill' ? chunksOf(bar) : [],
    says: inWords(bar, waterfall.currency),
  }));
}

interface Span {
  start_us: number;
  duration_us: number;
}

function overlaps(one: Span, other: Span): boolean {
  return one.start_us + one.duration_us > other.start_us && one.start_us < other.start_us + other.duration_us;
}

function inWords(bar: Bar, currency: string | null): string {
  const words = [
    `${stageLabel(bar.stage)}: ${displayMicroseconds(bar.duration_us)}`,
    `from ${displayMicroseconds(bar.start_us)}`,
  ];
  if (bar.tokens !== null) words.push(`${displayCount(bar.tokens)} tokens`);
  if (bar.cost !== null) words.push(`${bar.cost} ${currency ?? ''}`.trim());
  return `${words.join(', ')}. ${bar.cause}`;
}

/** Whether the bars are the wall time without a gap, and their money is the request's. */
export function addsUp(waterfall: Waterfall): boolean {
  let end = 0;
  for (const bar of waterfall.bars) {
    if (bar.start_us !== end || bar.duration_us < 0) return false;
    end += bar.duration_us;
  }
  if (end !== waterfall.wall_us) return false;
  const costs = waterfall.bars.flatMap((bar) => (bar.cost === null ? [] : [bar.cost]));
  return waterfall.cost === null || compareAmounts(addAmounts(costs), waterfall.cost) === 0;
}

/** One sentence: where most of the time went. */
export function summary(waterfall: Waterfall): string {
  const sums = new Map<string, number>();
  for (const bar of waterfall.bars) sums.set(bar.stage, (sums.get(bar.stage) ?? 0) + bar.duration_us);
  const [stage, most] = [...sums].reduce((one, other) => (other[1] > one[1] ? other : one), ['', 0]);
  const wall = displayMicroseconds(waterfall.wall_us);
  if (stage === '' || waterfall.wall_us === 0) return `It took ${wall}.`;
  const share = Math.round((most * 100) / waterfall.wall_us);
  return `It took ${wall}: ${share} % of it went to ${stageLabel(stage).toLowerCase()}.`;
}

const OPENAI_TIERS: Record<string, string> = { interactive: 'priority', batch: 'flex' };

/** A command that sends a request of the same kind. Neither key nor prompt are known here, so neither is in it. */
export function replayCommand(waterfall: Waterfall, model: string, lane: string, origin: string): string {
  const anthropic = waterfall.surface === 'anthropic';
  const tier = anthropic ? undefined : OPENAI_TIERS[lane];
  const body = {
    model,
    ...(anthropic ? { max_tokens: 256 } : {}),
    messages: [{ role: 'user', content: 'YOUR PROMPT' }],
    ...(tier === undefined ? {} : { service_tier: tier }),
    ...(waterfall.streamed === true ? { stream: true } : {}),
  };
  const headers = anthropic
    ? ['-H "x-api-key: $TURNPIKE_API_KEY"', "-H 'anthropic-version: 2023-06-01'"]
    : ['-H "authorization: Bearer $TURNPIKE_API_KEY"'];
  const lines = [
    `curl ${origin}${anthropic ? '/v1/messages' : '/v1/chat/completions'}`,
    ...headers,
    "-H 'content-type: application/json'",
    `-d '${JSON.stringify(body).replaceAll("'", String.raw`'\''`)}'`,
  ];
  return lines.join(' \\\n  ');
}
