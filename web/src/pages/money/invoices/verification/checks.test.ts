import { describe, expect, it } from 'vitest';

import { checkCanonical, checkLines, checkStated, checkTax, checkTotals, missing } from './checks';
import { canonical, type InvoiceDocument, minorUnit, parseDocument, roundHalfUp } from './document';

/** 1 230 500 tokens at 0.40 are 0.4922; 3 000 at 1.60 are 0.0048; rounding them gives 0.49 and nothing, and carries. */
function invoice(): InvoiceDocument {
  const line = { kind: 'usage', unit: 'tokens', category: 'S', rate: 1900, of: 0 };
  return {
    kind: 'invoice',
    number: 'INV-2026-000002',
    period: '2026-10',
    currency: 'EUR',
    lines: [
      { ...line, text: 'input', price: 400_000, units: '1230500', exact: '492200000000', net: 49 },
      { ...line, text: 'output', price: 1_600_000, units: '3000', exact: '4800000000', net: 0 },
      { ...line, kind: 'carry', unit: '', text: 'Rounding', price: 0, units: '0', exact: '0', net: 1 },
    ],
    taxes: [{ category: 'S', rate: 1900, net: 50, tax: 10 }],
    net: 50,
    tax: 10,
    gross: 60,
    prepaid: 20,
    payable: 40,
    carry_in: '0',
    carry_out: '-3000000000',
    previous: 'ab'.repeat(32),
  };
}

const stated = { number: 'INV-2026-000002', net: '0.50', tax: '0.10', gross: '0.60', prepaid: '0.20', payable: '0.40' };

describe('a true invoice', () => {
  it('passes every check', () => {
    const document = invoice();
    const checks = [checkLines(document), checkTax(document), checkTotals(document), checkStated(document, stated)];
    expect(checks.map((check) => check.difference)).toEqual([undefined, undefined, undefined, undefined]);
    expect(checkCanonical(canonical(document)).difference).toBeUndefined();
  });
});

describe('a false invoice', () => {
  const changed = (change: (document: InvoiceDocument) => void): InvoiceDocument => {
    const document = invoice();
    change(document);
    return document;
  };

  it('with one token more is found at its line', () => {
    const document = changed((one) => (one.lines[0]!.units = '1230501'));
    expect(checkLines(document).difference).toContain('Line 1 (input): 1230501 × 400000 is 492200400000 pico');
  });

  it('with a line rounded the wrong way is found', () => {
    expect(checkLines(changed((one) => (one.lines[0]!.net = 50))).difference).toContain('is 49 minor units, not 50');
  });

  it('with the tax of another rate is found', () => {
    expect(checkTax(changed((one) => (one.taxes[0]!.tax = 9))).difference).toBe(
      'S at 19.00 %: the tax of 50 is 10, not 9.',
    );
  });

  it('with a line that no tax covers is found', () => {
    expect(checkTax(changed((one) => (one.lines[2]!.rate = 700))).difference).toContain('its lines are 49 minor units');
    const other = changed((one) => {
      one.lines[2]!.category = 'Z';
      one.taxes[0]!.net = 49;
      one.taxes[0]!.tax = 9;
    });
    expect(checkTax(other).difference).toBe('No tax is stated for Z 1900.');
  });

  it.each([
    ['net', 'Net is 50, not 51.'],
    ['tax', 'Tax is 10, not 11.'],
    ['gross', 'Gross is 60, not 61.'],
    ['payable', 'Payable is 40, not 41.'],
  ] as const)('with another %s is found', (name, difference) => {
    expect(checkTotals(changed((one) => (one[name] += 1))).difference).toBe(difference);
  });

  it('that loses a pico of what rounding leaves is found', () => {
    const document = changed((one) => (one.carry_out = '-2999999999'));
    expect(checkTotals(document).difference).toContain('497000000000, not 497000000001');
  });

  it('that is not what the page shows is found', () => {
    expect(checkStated(invoice(), { ...stated, gross: '0.61' }).difference).toBe(
      'gross is 0.61, the document says 0.6.',
    );
    expect(checkStated(invoice(), { ...stated, number: 'INV-2026-000003' }).difference).toContain('INV-2026-000002');
  });

  it('in another form is found, though it says the same', () => {
    expect(checkCanonical(JSON.stringify(invoice(), null, 1)).difference).toBeDefined();
  });

  it('is no invoice at all', () => {
    expect(() => parseDocument('[]')).toThrow('no invoice');
  });
});

describe('sums', () => {
  const parts = [
    { units: 3, exact: '0.000000000001' },
    { units: 4, exact: '9007199254740993.000000000002' },
  ];

  it('are exact where a float would round', () => {
    expect(missing({ units: 7, exact: '9007199254740993.000000000003' }, parts)).toBeUndefined();
  });

  it('miss a pico, and a unit', () => {
    expect(missing({ units: 7, exact: '9007199254740993.000000000004' }, parts)).toContain('000000000003, not');
    expect(missing({ units: 8, exact: '9007199254740993.000000000003' }, parts)).toBe('7 units, not 8');
  });
});

describe('minor units', () => {
  it('are those of ISO 4217', () => {
    expect([minorUnit('EUR'), minorUnit('JPY'), minorUnit('KWD')]).toEqual([10n ** 10n, 10n ** 12n, 10n ** 9n]);
  });

  it('round half away from zero', () => {
    expect([roundHalfUp(15n, 10n), roundHalfUp(14n, 10n), roundHalfUp(-15n, 10n)]).toEqual([2n, 1n, -2n]);
  });
});
