/** The causes of misses in words. */
import type { Schema } from '~/api/client';

type Cause = Schema<'MissCause'>['cause'];

const WORDS: Record<Cause, [word: string, text: string]> = {
  read: ['Read from the cache', 'Billed at the price of reads.'],
  not_diagnosed: ['Not looked at', 'Prompts too short to be cached, and requests that the history had no room for.'],
  no_read: ['No read was wanted', 'The request asked not to read, or only what is younger.'],
  no_store: ['Nothing was to be kept', 'This request or the earlier one asked that its KV is not shared.'],
  below_minimum: ['Too short', 'The prefix is shorter than the least that is cached.'],
  model_changed: ['Another model', 'An earlier request had the same prompt under another model.'],
  template_changed: ['Another template', 'An earlier request had the same prompt under another chat template.'],
  partition_changed: ['Another partition', 'An earlier request had the same prompt under another partition.'],
  lease_limit: ['Too many promises', 'The project had as many tokens in leases as it may.'],
  not_yet_visible: ['Too early', 'The earlier request had not begun to answer.'],
  purged: ['Purged', 'Somebody ended the promise.'],
  lease_expired: ['Promise ended', 'The lease had ended before the prompt came again.'],
  unmarked: ['No marker', 'The prompt came again, but no marker promised it.'],
  lookback_exceeded: ['Marker too far away', 'The lease was further back than markers look.'],
  block_rest: ['Rest of a block', 'Tokens are found in whole blocks only.'],
  corrupted: ['Damaged', 'What was kept could not be read back.'],
  late: ['Slow to read', 'It was kept in a slower tier; computing it was quicker than waiting for it.'],
  other_replica: ['Another replica', 'Another replica had it.'],
  evicted: ['Evicted', 'It was not promised, and its place was taken.'],
  diverged: ['Prompt differs', 'The prompt differs from here on from the one that was cached.'],
  cold: ['First time', 'Nobody had sent it before.'],
};

// While gateways of two versions run, one may tell of a cause that only the newer one's console knows.
const words: Partial<Record<string, [word: string, text: string]>> = WORDS;

/** A cause in a few words. */
export function causeWord(cause: Cause): string {
  return words[cause]?.[0] ?? cause;
}

/** A cause in a sentence. */
export function causeText(cause: Cause): string {
  return words[cause]?.[1] ?? 'A newer gateway found this cause.';
}
