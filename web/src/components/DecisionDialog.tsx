/** Asks before somebody decides about a change of another: what it changes stands above the buttons, and why is recorded. */
import { Modal, Stack } from '@mantine/core';
import { type ReactNode, useState } from 'react';

import { Form } from './forms';
import { Reason } from './Reason';

interface DecisionDialogProps {
  opened: boolean;
  close: () => void;
  /** What is decided: "Approve prices of lark". */
  title: string;
  /** What the change changes, from what to what, and for whom. */
  children: ReactNode;
  /** What the button says that decides. */
  action: string;
  /** The change is ended and not made. */
  ends?: boolean;
  pending: boolean;
  error: unknown;
  decide: (reason: string) => void;
}

export function DecisionDialog({ opened, close, title, children, ...decision }: DecisionDialogProps) {
  return (
    <Modal opened={opened} onClose={close} title={title} size="xl">
      {opened && (
        <Stack>
          {children}
          <Decision close={close} {...decision} />
        </Stack>
      )}
    </Modal>
  );
}

type DecisionProps = Pick<DecisionDialogProps, 'close' | 'action' | 'ends' | 'pending' | 'error' | 'decide'>;

function Decision({ close, action, ends = false, pending, error, decide }: DecisionProps) {
  const [reason, setReason] = useState('');
  return (
    <Form submit={() => decide(reason)} error={error} pending={pending} action={action} danger={ends} cancel={close}>
      <Reason value={reason} set={setReason} error={error} />
    </Form>
  );
}
