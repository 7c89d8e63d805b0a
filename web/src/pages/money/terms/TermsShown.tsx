/** Terms in words. */
import { List, Text } from '@mantine/core';
import type { ReactNode } from 'react';

import type { Schema } from '~/api/client';
import { Money } from '~/components/values';
import { displayCount } from '~/money/decimal';

import { percentOf } from './terms_text';

export function TermsShown({ terms }: { terms: Schema<'TermsObject'> }) {
  const items: ReactNode[] = [];
  for (const tiers of terms.tiers ?? []) {
    const steps = tiers.steps.map((step, n) => (
      <span key={n}>
        {n > 0 && ', '}
        {step.up_to === null || step.up_to === undefined ? 'the rest at ' : `up to ${displayCount(step.up_to)} at `}
        <Money amount={step.price} places="exact" />
      </span>
    ));
    items.push(
      <>
        {tiers.model}, {tiers.meter.replaceAll('_', ' ')}, {tiers.lane ?? 'standard'} lane, {tiers.kind}: {steps}
      </>,
    );
  }
  for (const discount of terms.discounts ?? []) {
    const models = discount.models ?? [];
    items.push(`${percentOf(discount.basis_points)} % off ${models.length === 0 ? 'all models' : models.join(', ')}`);
  }
  if (terms.minimum) {
    const { first, last, prorated } = terms.minimum;
    items.push(
      <>
        at least <Money amount={terms.minimum.amount} /> a month{first && ` from ${first}`}
        {last && ` to ${last}`}, used or not{prorated === false && ', not in proportion to its days'}
      </>,
    );
  }
  if (terms.commitment) {
    const { amount, first, last, invoiced, payments = [] } = terms.commitment;
    items.push(
      <>
        <Money amount={amount} /> committed from {first} to {last},{' '}
        {invoiced === false ? 'not invoiced' : 'asked for with the first month'}
        {payments.map((payment, n) => (
          <span key={n}>
            , <Money amount={payment.amount} /> paid by {payment.reference} ({payment.reason})
          </span>
        ))}
      </>,
    );
  }
  if (items.length === 0) return <Text size="sm">List prices.</Text>;
  return (
    <List size="sm">
      {items.map((item, n) => (
        <List.Item key={n}>{item}</List.Item>
      ))}
    </List>
  );
}
