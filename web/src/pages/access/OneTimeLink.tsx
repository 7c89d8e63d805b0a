/** A one-time link, shown this once, to hand over by a way that nobody else reads. */
import { Alert, Button, Code, CopyButton, Group, Stack, Text } from '@mantine/core';

import type { Schema } from '~/api/client';
import { useHeldOpen } from '~/components/SecretModal';
import { Instant } from '~/components/values';

export function OneTimeLink({ link, whom, done }: { link: Schema<'LinkObject'>; whom: string; done: () => void }) {
  useHeldOpen();
  const url = `${location.origin}${link.path}`;
  return (
    <Stack>
      <Alert color="yellow.9" variant="outline" role="note">
        This link is shown once, and is good once, until <Instant at={link.expires_at} />. Whoever has it can use it:
        hand it over by a way that nobody else reads.
      </Alert>
      <Text size="sm">For {whom}:</Text>
      <Code block className="wraps" data-secret>
        {url}
      </Code>
      <Group>
        <CopyButton value={url}>
          {({ copied, copy }) => <Button onClick={copy}>{copied ? 'Copied' : 'Copy'}</Button>}
        </CopyButton>
        <Button variant="default" onClick={done}>
          I have handed it over
        </Button>
      </Group>
    </Stack>
  );
}
