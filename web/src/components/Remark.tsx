/** Something that one should know, set off from the rest; it is not read out by itself. */
import { Paper, Text } from '@mantine/core';
import type { ReactNode } from 'react';

export function Remark({ title, children }: { title?: string; children: ReactNode }) {
  return (
    <Paper withBorder p="sm" component="section" aria-label={title} className="remark wraps">
      {title !== undefined && (
        <Text fw={600} component="h2" size="md">
          {title}
        </Text>
      )}
      <Text size="sm" component="div">
        {children}
      </Text>
    </Paper>
  );
}
