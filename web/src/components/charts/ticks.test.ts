import { expect, test } from 'vitest';

import { roundTicks } from './ticks';

test.each([
  [0, [0, 1]],
  [0.26, [0, 0.1, 0.2, 0.3]],
  [1, [0, 0.2, 0.4, 0.6, 0.8, 1]],
  [7, [0, 2, 4, 6, 8]],
  [12, [0, 2.5, 5, 7.5, 10, 12.5]],
  [1234, [0, 250, 500, 750, 1000, 1250]],
  [0.000031, [0, 0.00001, 0.00002, 0.00003, 0.00004]],
])('lines of an axis up to %d are round', (most, ticks) => {
  expect(roundTicks(most)).toEqual(ticks);
});

test('an axis has at most six lines, the last at the top or above', () => {
  for (let most = 1e-9; most < 1e12; most *= 1.37) {
    const ticks = roundTicks(most);
    expect(ticks.length).toBeLessThanOrEqual(6);
    expect(ticks.at(-1)).toBeGreaterThanOrEqual(most * (1 - 1e-9));
  }
});
