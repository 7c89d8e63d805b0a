/** Names with their values, as a list of definitions that wraps on a narrow screen. */
import { SimpleGrid, Text } from '@mantine/core';
import type { ReactNode } from 'react';

export interface Fact {
  name: string;
  value: ReactNode;
  /** What makes it, or what it means. */
  about?: ReactNode;
}

export function Facts({ facts, label }: { facts: readonly Fact[]; label: string }) {
  return (
    <SimpleGrid component="dl" aria-label={label} cols={{ base: 1, xs: 2, md: 4 }} spacing="md" my={0}>
      {facts.map((fact) => (
        <div key={fact.name}>
          <Text component="dt" size="xs" c="dimmed">
            {fact.name}
          </Text>
          <Text component="dd" m={0} className="wraps">
            {fact.value}
          </Text>
          {fact.about !== undefined && (
            <Text component="dd" m={0} size="xs" c="dimmed">
              {fact.about}
            </Text>
          )}
        </div>
      ))}
    </SimpleGrid>
  );
}
