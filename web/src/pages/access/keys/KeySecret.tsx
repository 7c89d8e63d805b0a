/** A new secret of a key, shown this once. */
import { Stack, Text } from '@mantine/core';

import type { Schema } from '~/api/client';
import { SecretOnce } from '~/components/forms';

import { nameOf } from './fields';

/** A new secret, and that it was kept. */
export function KeySecret({ made, done }: { made: Schema<'KeyWithSecret'>; done: () => void }) {
  return (
    <Stack>
      <Text size="sm">
        The key {nameOf(made)}. {made.kind === 'project' ? 'Send it as a bearer token to /v1.' : 'It is for /admin/v1.'}
      </Text>
      <SecretOnce
        secret={made.key}
        variable="TURNPIKE_API_KEY"
        file={`${made.name.replace(/[^\w-]+/g, '-') || 'key'}.env`}
        done={done}
      />
    </Stack>
  );
}
