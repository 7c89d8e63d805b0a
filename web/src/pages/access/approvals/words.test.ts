import { describe, expect, test } from 'vitest';

import { creditedLines, fieldsOf, forWhom, raised, termsOf, titleOf } from './words';

const change = (kind: string, details: Record<string, string>, summary = '') => ({ kind, details, summary });

describe('the title of a change', () => {
  test.each([
    [change('grant.create', { amount: '5.000000000000', currency: 'USD', kind: 'promo' }), 'Grant of 5.00 USD to acme'],
    [
      change('grant.create', { amount: '5.250000000000', currency: 'USD', kind: 'paid' }),
      'Payment of 5.25 USD to acme',
    ],
    [
      change('credit_line.set', { amount: '9000000.500000000000', currency: 'EUR' }),
      'Credit line of 9 000 000.50 EUR for acme',
    ],
    [change('terms.set', { from_period: '2026-12' }), 'Terms of acme from 2026-12 on'],
    [change('platform_setting.set', { name: 'grant_limit', value: '100' }), 'Setting grant limit: 100'],
    [change('price_sheet.activate', { sheet: '4' }, 'prices of lark in book base'), 'Prices of lark, book base'],
    [
      change('credit_note.issue', {}, 'a credit note of 5.00 EUR for DEMO-7'),
      'Credit note of 5.00 EUR for DEMO-7, of acme',
    ],
    [change('of.a.later.kind', {}, 'something of 1.500000000000 USD'), 'Something of 1.5 USD'],
  ])('%o', (one, title) => expect(titleOf(one, 'acme')).toBe(title));
});

test('for whom it is', () => {
  expect(forWhom({ kind: 'grant.create', tenant_id: 'tenant_1' }, 'acme')).toBe('the tenant acme');
  expect(forWhom({ kind: 'price_sheet.activate', tenant_id: null }, '')).toMatch(/^every tenant/);
  expect(forWhom({ kind: 'platform_setting.set', tenant_id: null }, '')).toBe('the whole platform');
});

test('terms are made of the places of their values', () => {
  const details = {
    tenant_id: 'x',
    from_period: '2026-12',
    'terms.tiers.0.kind': 'volume',
    'terms.tiers.0.steps.0.price': '0.5',
    'terms.tiers.0.steps.0.up_to': '1000000',
    'terms.tiers.0.steps.1.price': '0.4',
    'terms.discounts.0.basis_points': '1250',
    'terms.discounts.0.models.0': 'lark',
    'terms.commitment.amount': '100.000000000000',
    'terms.commitment.invoiced': 'false',
    'terms.commitment.payments.0.amount': '40.000000000000',
    'terms.commitment.payments.0.reference': 'bank 1',
  };
  expect(termsOf(details)).toEqual({
    tiers: [{ kind: 'volume', steps: [{ price: '0.5', up_to: 1_000_000 }, { price: '0.4' }] }],
    discounts: [{ basis_points: 1_250, models: ['lark'] }],
    commitment: {
      amount: '100.000000000000',
      invoiced: false,
      payments: [{ amount: '40.000000000000', reference: 'bank 1' }],
    },
  });
  expect(termsOf({ from_period: '2026-12' })).toEqual({});
});

test('amounts and fields are short, and exact', () => {
  expect(raised('9007199254740993.1', '0.000000000001')).toBe('9007199254740993.100000000001');
  expect(raised(undefined, '1')).toBeUndefined();
  expect(creditedLines({ 'amounts.4': '500', 'amounts.11': '', reason: '7' })).toEqual(['4', '11']);
  expect(fieldsOf({ tenant_id: 'x', 'a_b.0.c': '2.000000000000' })).toEqual([['a b 1 c', '2']]);
});
