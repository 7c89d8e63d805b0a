/** Who runs the platform: operators with an account. */
import { Stack } from '@mantine/core';
import { Link } from '@tanstack/react-router';

import { Page } from '~/components/Page';

import { Members } from '../members/Members';

export function PlatformMembersPage() {
  return (
    <Page
      title="Operators"
      about={
        <>
          Roles at the platform reach every tenant. Keys of operators are on{' '}
          <Link to="/platform/operator-keys">their own page</Link>.
        </>
      }
    >
      <Stack>
        <Members scope={{}} />
      </Stack>
    </Page>
  );
}
