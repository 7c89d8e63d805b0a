import { describe, expect, test } from 'vitest';

import { addAmounts, compareAmounts, displayAmount, displayCount, formatAmount, parseAmount, shareOf } from './decimal';

describe('amounts', () => {
  test.each(['0', '1', '-1', '0.000000000001', '-123456789012345678.5', '99999999999999999999.999999999999'])(
    '%s comes back as it was',
    (text) => expect(formatAmount(parseAmount(text))).toBe(text),
  );
  test.each(['', '1.', '.5', '1e3', '+1', ' 1', '1.0000000000001', 'NaN'])('%j is refused', (text) =>
    expect(() => parseAmount(text)).toThrow(RangeError),
  );
  test('a sum that a float would round is exact', () => {
    expect(addAmounts(['0.1', '0.2'])).toBe('0.3');
    expect(addAmounts(['9007199254740993', '0.000000000001', '-9007199254740993'])).toBe('0.000000000001');
  });
  test('amounts are compared by value', () => {
    expect(compareAmounts('1.50', '1.5')).toBe(0);
    expect(compareAmounts('-2', '1')).toBe(-1);
    expect(compareAmounts('10', '9.999999999999')).toBe(1);
  });
  test('people read grouped thousands, and all places unless they are told how many', () => {
    expect(displayAmount('1234567.5')).toBe('1\u202f234\u202f567.50');
    expect(displayAmount('-0.000123')).toBe('−0.000123');
    expect(displayAmount('2.675', 2)).toBe('2.68');
    expect(displayAmount('-2.675', 2)).toBe('−2.68');
    expect(displayAmount('999.999', 0)).toBe('1\u202f000');
    expect(displayCount(-1234567)).toBe('−1\u202f234\u202f567');
  });
  test('a share is for drawing', () => {
    expect(shareOf('1', '4')).toBe(0.25);
    expect(shareOf('1', '0')).toBe(0);
  });
});
