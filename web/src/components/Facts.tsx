/** Figures of a page at a glance: each with what it is, its value, and a link to the rows that make it. */
import { Anchor, Paper, SimpleGrid, Text } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';

export interface Fact {
  label: string;
  value: ReactNode;
  /** What else there is to say, below the value. */
  note?: ReactNode;
  /** Where the rows are that make it: a path with its search. */
  to?: string;
  search?: object;
  linkText?: string;
}

export function Facts({ facts, label }: { facts: Fact[]; label: string }) {
  return (
    <SimpleGrid component="section" aria-label={label} cols={{ base: 1, xs: 2, md: 3, lg: 4 }} spacing="sm">
      {facts.map((fact) => (
        <Paper key={fact.label} withBorder p="sm" component="article" aria-label={fact.label}>
          <Text size="sm" c="dimmed">
            {fact.label}
          </Text>
          <Text size="lg" fw={600} component="div" className="wraps">
            {fact.value}
          </Text>
          {fact.note !== undefined && (
            <Text size="xs" c="dimmed" component="div">
              {fact.note}
            </Text>
          )}
          {fact.to !== undefined && (
            <Anchor
              component={Link}
              size="sm"
              // paths of other areas are not known to this one's types
              {...({ to: fact.to, search: fact.search ?? {} } as object)}
              aria-label={`${fact.linkText ?? 'Show what makes it'}: ${fact.label}`}
            >
              {fact.linkText ?? 'Show what makes it'}
            </Anchor>
          )}
        </Paper>
      ))}
    </SimpleGrid>
  );
}

/** Amounts by currency, each on its line; a dash where there are none. */
export function Amounts({
  amounts,
  show,
}: {
  amounts: Record<string, string>;
  show: (amount: string, currency: string) => ReactNode;
}) {
  const entries = Object.entries(amounts).sort();
  if (entries.length === 0) return <>–</>;
  return (
    <>
      {entries.map(([currency, amount]) => (
        <div key={currency}>{show(amount, currency)}</div>
      ))}
    </>
  );
}

/** A part of 1 in per cent, with one decimal; a dash where there is none. */
export function displayRate(rate: number | null | undefined): string {
  return rate === null || rate === undefined ? '–' : `${(rate * 100).toFixed(1)}\u00a0%`;
}
