/** What the fleet's page says of a replica. */
import type { Schema } from '~/api/client';

type Replica = Pick<Schema<'ReplicaObject'>, 'name' | 'state' | 'silent_s' | 'waiting' | 'service_us' | 'memory'>;
type Metrics = Schema<'ReplicaObject'>['metrics'];

export interface TierRow {
  name: string;
  free: string;
  referenced: string;
  cached: string;
  total: string;
  /** Per cent of the blocks that are not free. */
  filled: number;
}

const LANES = ['interactive', 'standard', 'batch'];
const TIERS = { hbm: 'Device memory', dram: 'Host memory', nvme: 'Disk' } as const;
const SLOW_S = 3;
const LOST_S = 10;

/** The state in a word. Silence of 3 s is to be looked at; after 10 s the replica counts as lost. */
export function stateOf({ state, silent_s }: Replica): {
  word: string;
  tone: 'good' | 'waiting' | 'bad' | 'neutral';
} {
  if (state === 'down') return { word: 'Down', tone: 'bad' };
  if (silent_s >= LOST_S) return { word: 'Silent', tone: 'bad' };
  if (state === 'stalled') return { word: 'Stalled', tone: 'bad' };
  if (state === 'disk_full') return { word: 'Disk full', tone: 'bad' };
  if (state === 'engine_down') return { word: 'Engine down', tone: 'bad' };
  if (state === 'draining') return { word: 'Draining', tone: 'waiting' };
  if (silent_s >= SLOW_S) return { word: 'Slow', tone: 'waiting' };
  return { word: 'Healthy', tone: 'good' };
}

/** All states in a sentence: it changes, and is announced, only when a state does. */
export function announcement(replicas: readonly Replica[]): string {
  return replicas.map((replica) => `${replica.name}: ${stateOf(replica).word}.`).join(' ');
}

/** The lanes with what waits in each, and the engine time that each was given. */
export function laneRows({ waiting, service_us }: Replica): { lane: string; waiting: string; service: string }[] {
  const named = [...new Set([...LANES, ...Object.keys(waiting)])];
  if (Object.keys(waiting).length === 0 && Object.keys(service_us).length === 0) return [];
  return named.map((lane) => ({
    lane,
    waiting: (waiting[lane] ?? 0).toLocaleString('en'),
    service: `${((service_us[lane] ?? 0) / 1e6).toLocaleString('en', { maximumFractionDigits: 1 })} s`,
  }));
}

const SPECULATION = 'turnpike_engine_speculation_';
const OFF = {
  off_setting: 'off by its settings',
  off_attention: 'off: attention is fast, so that drafts could change outputs',
  off_device: 'off: this device verifies no drafts',
  off_self_test: 'off: outputs depend on the batch here',
  off_failed: 'off: every drafter has failed',
} as const;

const ATTENTION = 'turnpike_engine_attention_';
const LIBRARIES = {
  flash_attention_4: 'FlashAttention 4',
  flash_attention_3: 'FlashAttention 3',
  flash_attention_2: 'FlashAttention 2',
  cudnn: 'cuDNN',
  torch_flash: 'the FlashAttention in PyTorch',
  torch: 'PyTorch',
} as const;

/** By which libraries attention is computed, in a sentence; empty where it is exact, or not known. */
export function attentionOf(metrics: Metrics): string {
  const used = Object.entries(LIBRARIES).filter(([name]) => metrics[ATTENTION + name] === 1);
  return used.length === 0 ? '' : `Attention is fast, by ${used.map(([, name]) => name).join(' and ')}.`;
}

/** What came of drafts, in a sentence; empty for a replica that was not heard or is older than drafts. */
export function draftsOf(metrics: Metrics): string {
  const figure = (name: string): number => metrics[SPECULATION + name] ?? 0;
  if (metrics[`${SPECULATION}decodes_total`] === undefined) return '';
  const off = Object.entries(OFF).find(([name]) => figure(name) === 1);
  if (off !== undefined) return `Speculation is ${off[1]}.`;
  const drafted = figure('drafted_tokens_total');
  if (drafted === 0) return 'No draft was verified yet.';
  const share = (part: number, whole: number): string => `${Math.round((100 * part) / whole)} %`;
  const accepted = figure('accepted_tokens_total');
  return `${share(accepted, drafted)} of ${drafted.toLocaleString('en')} drafted tokens were accepted: ${share(accepted, figure('emitted_tokens_total'))} of the output.`;
}

type Rates = NonNullable<Schema<'ReplicaObject'>['rates']>;

/** What it did in the last minute, how far it used its device, and what its tokens cost. */
export function ratesOf({
  busy,
  computed,
  read,
  output,
  bandwidth,
  arithmetic,
  million_cost,
  currency,
}: Rates): string {
  const share = (part: number): string => `${Math.round(100 * part)} %`;
  const whole = (count: number): string => Math.round(count).toLocaleString('en');
  const parts = [
    `at work ${share(busy)} of the time`,
    `${whole(computed)} prompt tokens a second computed, ${whole(read)} read, ${whole(output)} drawn`,
  ];
  if (bandwidth !== null) parts.push(`${share(bandwidth)} of its bandwidth (MBU)`);
  if (arithmetic !== null) parts.push(`${share(arithmetic)} of its arithmetic (MFU)`);
  if (million_cost !== null) parts.push(`${million_cost.toPrecision(3)} ${currency} for a million tokens`);
  return `Last minute: ${parts.join('; ')}.`;
}

/** The memory for KV by tier; layer groups are told apart where there are several. */
export function tierRows({ memory }: Replica): TierRow[] {
  const groups = new Set(memory.map((each) => each.group)).size;
  return memory.map((each) => ({
    name: groups > 1 ? `${TIERS[each.tier]}, group ${each.group}` : TIERS[each.tier],
    free: each.free.toLocaleString('en'),
    referenced: each.referenced.toLocaleString('en'),
    cached: each.cached.toLocaleString('en'),
    total: each.total.toLocaleString('en'),
    filled: each.total === 0 ? 0 : Math.round((100 * (each.total - each.free)) / each.total),
  }));
}

/** Which adapters are ready, in a sentence. */
export function adaptersOf({ adapters, metrics }: Pick<Schema<'ReplicaObject'>, 'adapters' | 'metrics'>): string {
  const figure = (name: string): number => metrics[`turnpike_engine_${name}`] ?? 0;
  const slots = figure('adapter_slots');
  if (slots === 0) return 'It serves no adapters.';
  const names = adapters.map((adapter) => adapter.model ?? `${adapter.digest.slice(0, 12)} (deleted)`);
  const ready = names.length === 0 ? 'none is ready' : `ready are ${names.join(', ')}`;
  return `Adapters: ${ready}; ${slots} slots, ${figure('adapters_in_host_memory')} in host memory.`;
}
