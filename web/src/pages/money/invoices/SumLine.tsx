/** Says whether the parts on screen add up to their parent, to the pico. */
import { Alert, Text } from '@mantine/core';
import { IconEqual } from '@tabler/icons-react';

import { Money } from '~/components/values';
import { displayCount, formatAmount } from '~/money/decimal';

import { missing, type Sum, sumOf } from './verification/checks';

interface SumLineProps {
  parts: readonly Sum[];
  /** What they are: "31 days". */
  what: string;
  parent: Sum;
  /** What the parent is: "line 3". */
  of: string;
  currency: string;
}

export function SumLine({ parts, what, parent, of, currency }: SumLineProps) {
  const difference = missing(parent, parts);
  if (difference !== undefined) {
    return (
      <Alert color="red" variant="outline" role="alert" title={`The ${what} do not add up to ${of}`}>
        They are {difference}.
      </Alert>
    );
  }
  const { units, pico } = sumOf(parts);
  return (
    <Text size="sm" data-sum="equal">
      <IconEqual size={14} aria-hidden style={{ verticalAlign: '-2px' }} /> {what}{' '}
      {what.startsWith('1 ') ? 'is' : 'are'} {displayCount(units)} units and{' '}
      <Money amount={formatAmount(pico)} currency={currency} places="exact" />, exactly {of}.
    </Text>
  );
}

/** So many of something: "1 day", "31 days". */
export function counted(count: number, what: string): string {
  return `${displayCount(count)} ${what}${count === 1 ? '' : 's'}`;
}
