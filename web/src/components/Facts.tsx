/** Figures of a page at a glance: each with what it is, its value, what it means, and a link to the rows that make it. */
import { Anchor, Paper, SimpleGrid, Text } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';

export interface Fact {
  name: string;
  value: ReactNode;
  /** What makes it, or what it means. */
  about?: ReactNode;
  /** Where the rows are that make it: a path with its search. */
  to?: string;
  search?: object;
  linkText?: string;
}

/** A list of definitions that wraps on a narrow screen. */
export function Facts({ facts, label }: { facts: readonly Fact[]; label: string }) {
  return (
    <SimpleGrid component="dl" aria-label={label} cols={{ base: 1, xs: 2, md: 3, lg: 4 }} spacing="sm" my={0}>
      {facts.map((fact) => (
        <Paper key={fact.name} withBorder p="sm">
          <Text component="dt" size="sm" c="dimmed">
            {fact.name}
          </Text>
          <Text component="dd" m={0} fw={600} className="wraps">
            {fact.value}
          </Text>
          {fact.about !== undefined && (
            <Text component="dd" m={0} size="xs" c="dimmed">
              {fact.about}
            </Text>
          )}
          {fact.to !== undefined && (
            <Text component="dd" m={0} size="sm">
              <Anchor
                component={Link}
                inherit
                // paths of other areas are not known to this one's types
                {...({ to: fact.to, search: fact.search ?? {} } as object)}
                aria-label={`${fact.linkText ?? 'Show what makes it'}: ${fact.name}`}
              >
                {fact.linkText ?? 'Show what makes it'}
              </Anchor>
            </Text>
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
