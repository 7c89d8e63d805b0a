import { expect, test } from 'vitest';

import { adaptersOf, announcement, attentionOf, draftsOf, laneRows, ratesOf, stateOf, tierRows } from './replicas';

const REPLICA = {
  name: 'replica-0',
  state: 'healthy',
  silent_s: 0.4,
  waiting: { interactive: 0, standard: 1_200 },
  service_us: { standard: 2_540_000 },
  memory: [
    { tier: 'hbm', group: 0, free: 25, referenced: 25, cached: 50, total: 100 },
    { tier: 'nvme', group: 0, free: 0, referenced: 0, cached: 0, total: 0 },
  ],
} as const satisfies Parameters<typeof stateOf>[0];

test('silence is told by how long it lasts, and a replica that is down is that first', () => {
  const words = [0, 2.9, 3, 9.9, 10].map((silent_s) => stateOf({ ...REPLICA, silent_s }).word);
  expect(words).toEqual(['Healthy', 'Healthy', 'Slow', 'Slow', 'Silent']);
  expect(stateOf({ ...REPLICA, state: 'down', silent_s: 60 }).word).toBe('Down');
  expect(stateOf({ ...REPLICA, state: 'draining' })).toEqual({ word: 'Draining', tone: 'waiting' });
});

test('what is announced changes only with a state', () => {
  expect(announcement([REPLICA])).toBe(announcement([{ ...REPLICA, silent_s: 1.2, waiting: {} }]));
  expect(announcement([REPLICA])).not.toBe(announcement([{ ...REPLICA, state: 'draining' }]));
});

test('every lane has its row, and a replica that was not heard has none', () => {
  expect(laneRows(REPLICA)).toEqual([
    { lane: 'interactive', waiting: '0', service: '0 s' },
    { lane: 'standard', waiting: '1,200', service: '2.5 s' },
    { lane: 'batch', waiting: '0', service: '0 s' },
  ]);
  expect(laneRows({ ...REPLICA, waiting: {}, service_us: {} })).toEqual([]);
});

test('a tier without blocks is filled to nothing', () => {
  expect(tierRows(REPLICA).map((row) => [row.name, row.filled])).toEqual([
    ['Device memory', 75],
    ['Disk', 0],
  ]);
});

test('by what attention is computed, where it is fast', () => {
  const name = 'turnpike_engine_attention_';
  expect(attentionOf({})).toBe('');
  expect(attentionOf({ [`${name}cudnn`]: 0 })).toBe('');
  expect(attentionOf({ [`${name}cudnn`]: 1, [`${name}torch`]: 0 })).toBe('Attention is fast, by cuDNN.');
});

test('what came of drafts, or why there are none', () => {
  const name = 'turnpike_engine_speculation_';
  expect(draftsOf({})).toBe('');
  expect(draftsOf({ [`${name}decodes_total`]: 4 })).toBe('No draft was verified yet.');
  expect(draftsOf({ [`${name}decodes_total`]: 4, [`${name}off_device`]: 1 })).toBe(
    'Speculation is off: this device verifies no drafts.',
  );
  expect(
    draftsOf({
      [`${name}decodes_total`]: 4,
      [`${name}drafted_tokens_total`]: 1_200,
      [`${name}accepted_tokens_total`]: 900,
      [`${name}emitted_tokens_total`]: 1_800,
    }),
  ).toBe('75 % of 1,200 drafted tokens were accepted: 50 % of the output.');
});

test('the last minute of a replica, with what is known of its device and costs', () => {
  const rates = {
    ...{ seconds: 60, busy: 0.9, steps: 9, computed: 1200.4, read: 50, output: 900, recomputed: 0, preempted: 0 },
    ...{ drafting: 0, decodes_of_step: 2, currency: 'EUR' },
  };
  expect(ratesOf({ ...rates, bandwidth: 0.613, arithmetic: 0.04, million_cost: 0.12345 })).toBe(
    'Last minute: at work 90 % of the time; 1,200 prompt tokens a second computed, 50 read, 900 drawn; 61 % of its bandwidth (MBU); 4 % of its arithmetic (MFU); 0.123 EUR for a million tokens.',
  );
  expect(ratesOf({ ...rates, bandwidth: null, arithmetic: null, million_cost: null })).toBe(
    'Last minute: at work 90 % of the time; 1,200 prompt tokens a second computed, 50 read, 900 drawn.',
  );
});

test('which adapters are ready', () => {
  expect(adaptersOf({ adapters: [], metrics: {} })).toBe('It serves no adapters.');
  const metrics = { turnpike_engine_adapter_slots: 16, turnpike_engine_adapters_in_host_memory: 40 };
  expect(adaptersOf({ adapters: [], metrics })).toBe('Adapters: none is ready; 16 slots, 40 in host memory.');
  const [of, gone] = [
    { tenant_id: 't', project_id: 'p', digest: '9'.repeat(64) },
    { tenant_id: null, project_id: null },
  ];
  const adapters = [
    { id: 'a', model: 'tiny:support', ...of },
    { id: null, model: null, ...of, ...gone },
  ];
  expect(adaptersOf({ adapters, metrics })).toContain('ready are tiny:support, 999999999999 (deleted)');
});
