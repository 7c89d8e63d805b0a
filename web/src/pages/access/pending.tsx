/** Tells that a change was not made but waits for a second person. */
import { Anchor } from '@mantine/core';
import { notifications } from '@mantine/notifications';

import type { Schema } from '~/api/client';

/** Show that a change waits. Call it with an answer that `isPending` says yes to. */
export function tellPending(change: Schema<'PendingChangeObject'>): void {
  notifications.show({
    title: 'It waits for approval',
    message: (
      <>
        {change.summary}: another person must approve it.{' '}
        <Anchor inherit underline="always" href="/console/platform/approvals">
          To the approvals
        </Anchor>
      </>
    ),
    autoClose: false,
  });
}
