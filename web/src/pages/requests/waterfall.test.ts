import { expect, test } from 'vitest';

import { addsUp, type Bar, replayCommand, shownBars, summary, type Waterfall } from './waterfall';

function bar(stage: string, start_us: number, duration_us: number, more: Partial<Bar> = {}): Bar {
  return { stage, start_us, duration_us, attempt: null, tokens: null, cost: null, cause: 'Because.', ...more };
}

function waterfall(bars: Bar[], more: Partial<Waterfall> = {}): Waterfall {
  return {
    object: 'request.waterfall',
    id: 'req_1',
    recorded: 'whole',
    why: null,
    status: 'ok',
    code: null,
    surface: 'openai',
    streamed: true,
    received_at: '2026-11-23T05:33:00Z',
    wall_us: bars.reduce((sum, one) => sum + one.duration_us, 0),
    first_token_us: null,
    bars,
    beside: [],
    attempts: [],
    cost: null,
    currency: 'USD',
    ...more,
  };
}

const USUAL = [
  bar('auth', 0, 1000),
  bar('prefill', 1000, 6000, { attempt: 1, tokens: 1200, cost: '0.000000000001' }),
  bar('decode', 7000, 3000, { attempt: 1, tokens: 3, cost: '0.2' }),
];

test('bars lie where their time is', () => {
  const chunk = { what: 'prefill_chunk', attempt: 1, computed_tokens: 64, restored_tokens: 0 } as const;
  const beside = [
    { ...chunk, start_us: 2000, duration_us: 1000 },
    { ...chunk, start_us: 8000, duration_us: 500 },
    { ...chunk, start_us: 2000, duration_us: 1000, attempt: 2 },
  ];
  const shown = shownBars(waterfall(USUAL, { beside }));
  expect(shown.map(({ left, width }) => [left, width])).toEqual([
    [0, 10],
    [10, 60],
    [70, 30],
  ]);
  expect(shown[1]?.parts).toEqual([{ left: 20, width: 10, label: '64 tokens in 1.000 ms' }]);
  expect(shown[1]?.says).toBe('Prefill: 6.000 ms, from 1.000 ms, 1\u202f200 tokens, 0.000000000001 USD. Because.');
});

test('what adds up adds up, to the microsecond and to the pico', () => {
  expect(addsUp(waterfall(USUAL, { cost: '0.200000000001' }))).toBe(true);
  expect(addsUp(waterfall(USUAL, { cost: '0.2' }))).toBe(false);
  expect(addsUp(waterfall(USUAL, { wall_us: 9999 }))).toBe(false);
  expect(addsUp(waterfall([bar('auth', 0, 10), bar('body', 11, 5)]))).toBe(false);
  expect(addsUp(waterfall([]))).toBe(true);
});

test('the summary names the stage that took most', () => {
  expect(summary(waterfall(USUAL))).toBe('It took 10.000 ms: 60 % of it went to prefill.');
  expect(summary(waterfall([]))).toBe('It took 0.000 ms.');
});

test('a stage that is not known is shown by its name', () => {
  expect(shownBars(waterfall([bar('teleport', 0, 5)]))[0]?.label).toBe('teleport');
});

test('a replay has neither key nor prompt, and nothing leaves its quotes', () => {
  const command = replayCommand(waterfall(USUAL), "it's", 'batch', 'https://gate.example');
  expect(command).toContain('https://gate.example/v1/chat/completions');
  expect(command).toContain('Bearer $TURNPIKE_API_KEY');
  expect(command).toContain(String.raw`"model":"it'\''s"`);
  expect(command).toContain('"service_tier":"flex"');
  expect(replayCommand(waterfall(USUAL, { surface: 'anthropic' }), 'm', 'standard', '')).toContain('/v1/messages');
});
