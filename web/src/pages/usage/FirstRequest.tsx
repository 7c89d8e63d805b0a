/** What to say where there is no usage, with the call that makes some. */
import { Code, Stack, Text } from '@mantine/core';
import type { ReactNode } from 'react';

/** The call of a first request, as one types it. */
export function firstCall(origin: string, model = 'MODEL'): string {
  return [
    `curl ${origin}/v1/chat/completions \\`,
    '  -H "authorization: Bearer $TURNPIKE_API_KEY" -H "content-type: application/json" \\',
    `  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello"}]}'`,
  ].join('\n');
}

export function FirstRequest({ children }: { children: ReactNode }) {
  return (
    <Stack gap="xs">
      <Text>{children}</Text>
      <Text size="sm" c="dimmed">
        Requests appear here seconds after they end. One from the command line:
      </Text>
      <Code block>{firstCall(location.origin)}</Code>
    </Stack>
  );
}
