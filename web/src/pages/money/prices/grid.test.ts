import { describe, expect, it } from 'vitest';

import { changeOf, columnName, gridOf, microOf } from './grid';

describe('gridOf', () => {
  const cell = { meter: 'output', context_from: 0, lane: '*' };
  const grid = gridOf([
    { ...cell, lane: 'batch', price: '0.80' },
    { ...cell, price: '1.60' },
    { ...cell, context_from: 200_000, price: '2.40' },
    { ...cell, meter: 'uncached', price: '0.40' },
  ]);

  it('has every lane first, then tiers, then lanes', () => {
    expect(grid.columns.map(columnName)).toEqual(['every lane', 'every lane, prompts from 200000 tokens', 'batch']);
  });

  it('knows where there is no price', () => {
    expect(grid.meters).toEqual(['output', 'uncached']);
    expect(grid.columns.map((column) => grid.price('uncached', column))).toEqual(['0.40', undefined, undefined]);
  });
});

describe('changeOf', () => {
  it.each([
    ['0.40', '0.45', '+12.5 %'],
    ['0.45', '0.40', '−11.1 %'],
    ['0.400000', '0.4', 'same'],
    ['0', '1', 'was free'],
    [null, '1', 'new'],
    ['1', null, 'removed'],
    ['3', '3.001', '+0.0 %'],
  ])('from %s to %s', (before, after, change) => {
    expect(changeOf(before, after)).toBe(change);
  });
});

describe('microOf', () => {
  it('is exact, and refuses what is no price', () => {
    expect(microOf('9007199254.740993')).toBe(9007199254740993n);
    expect(['-1', '1e3', '0.0000001', '', '1,5'].map(microOf)).toEqual(Array(5).fill(undefined));
  });
});
