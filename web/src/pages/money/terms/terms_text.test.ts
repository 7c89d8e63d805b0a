import { describe, expect, it } from 'vitest';

import { basisPoints, formatSteps, parseSteps, percentOf } from './terms_text';

describe('percentages', () => {
  it.each([
    ['12.5', 1250],
    ['10', 1000],
    ['0.05', 5],
    ['100', 10_000],
    ['7.01', 701],
  ])('%s %% is %i hundredths of a percent, and back', (percent, points) => {
    expect(basisPoints(percent)).toBe(points);
    expect(percentOf(points)).toBe(percent);
  });

  it.each(['-1', '12.345', '1e2', '', '1,5'])('refuses %j', (text) => {
    expect(() => basisPoints(text)).toThrow('is no percentage');
  });
});

describe('steps', () => {
  it('are read and written', () => {
    const text = 'up to 1000000 = 0.50\nrest = 0.40';
    expect(parseSteps(`${text}\n\n`)).toEqual([
      { up_to: 1_000_000, price: '0.50' },
      { up_to: null, price: '0.40' },
    ]);
    expect(formatSteps(parseSteps(text))).toBe(text);
  });

  it('refuse another text', () => {
    expect(() => parseSteps('from 10 = 1')).toThrow('is no step');
  });
});
