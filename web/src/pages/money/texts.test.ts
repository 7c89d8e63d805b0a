/** Texts of several rows that forms take: each is read exactly, or refused with what was expected. */
import { describe, expect, it } from 'vitest';

import { parseUnits } from './balance/MoneyActions';
import { parseCreditedLines } from './invoices/InvoiceActions';
import { parseRates } from './parties/SellersPage';

describe('credited lines', () => {
  it('are lines with or without an amount', () => {
    expect(parseCreditedLines('4 = 5.00\n7\n')).toEqual([
      { line: 4, amount: '5.00' },
      { line: 7, amount: null },
    ]);
    expect(parseCreditedLines(' \n')).toBeNull();
    expect(() => parseCreditedLines('all')).toThrow('is no line');
  });
});

describe('units', () => {
  it('may be less than zero', () => {
    expect(parseUnits('output = -120\nread_5m=3')).toEqual({ output: -120, read_5m: 3 });
    expect(() => parseUnits('output -120')).toThrow('is not units');
  });
});

describe('VAT rates', () => {
  it('are by country', () => {
    expect(parseRates('DE = 19.00\nAT = 20 %')).toEqual({ DE: '19.00', AT: '20' });
    expect(() => parseRates('Germany 19')).toThrow('is no VAT rate');
  });
});
