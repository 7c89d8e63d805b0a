/** Prompt tokens that are billed as read, and those whose KV the engine reused: two counts, which may differ. */
import { displayCount } from '~/money/decimal';

/** The engine's counts of reused KV, by the tier's name for people. */
const TIERS = { read_hbm: 'device memory', read_dram: 'host memory', read_nvme: 'disk' } as const;

export interface Reads {
  billed: number;
  /** Tokens by tier, of tiers that were read from. */
  reused: [tier: string, tokens: number][];
  computed: number;
}

/** The reads of a request, of its billed tokens by meter and the engine's counts. */
export function readsOf(billed: Record<string, number>, engine: Record<string, number>): Reads {
  const meters = Object.entries(billed).filter(([meter]) => meter.startsWith('read_'));
  const tiers = Object.entries(TIERS).map(([name, tier]): [string, number] => [tier, engine[name] ?? 0]);
  return {
    billed: meters.reduce((sum, [, tokens]) => sum + tokens, 0),
    reused: tiers.filter(([, tokens]) => tokens > 0),
    computed: engine.computed ?? 0,
  };
}

/** Why the two counts differ, where they do. */
export function readsInWords(billed: number, reused: Reads['reused']): string {
  const total = reused.reduce((sum, [, tokens]) => sum + tokens, 0);
  const difference = displayCount(Math.abs(billed - total));
  if (billed === total) return 'Both are the same: what was billed as read was reused.';
  if (billed > total) {
    return `${difference} tokens were billed as read and computed nevertheless: a promised read is cheap even where the KV was lost.`;
  }
  return `${difference} tokens were reused that are billed otherwise: what is billed as read follows from markers and promises, not from where KV happened to be.`;
}
