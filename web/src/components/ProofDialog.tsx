/** Asks for the password or a code before something dangerous is done, when the server wants a fresh proof. */
import { Button, Group, Modal, PasswordInput, Stack, Text, TextInput } from '@mantine/core';
import { type FormEvent, useEffect, useState } from 'react';

import type { Me } from '~/access/rights';
import { api } from '~/api/client';
import { asProblem } from '~/api/problem';
import { proofOfUser } from '~/api/proof';

interface Waiting {
  done: () => void;
  closed: (reason: Error) => void;
}

export function ProofDialog({ me }: { me: Me }) {
  const [waiting, setWaiting] = useState<Waiting | null>(null);
  const [value, setValue] = useState('');
  const [message, setMessage] = useState('');
  useEffect(() => proofOfUser.register(() => new Promise((done, closed) => setWaiting({ done, closed }))), []);
  const end = (): void => {
    setWaiting(null);
    setValue('');
    setMessage('');
  };
  const confirm = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    try {
      const body = me.has_second_factor ? { code: value } : { password: value };
      await api.POST('/admin/v1/session/confirm', { body });
      waiting?.done();
      end();
    } catch (error) {
      setMessage(asProblem(error).message);
    }
  };
  const close = (): void => {
    waiting?.closed(new Error('It was not confirmed, so nothing was changed.'));
    end();
  };
  const shared = { value, error: message, required: true, 'data-autofocus': true } as const;
  return (
    <Modal opened={waiting !== null} onClose={close} title="Confirm that it is you" zIndex={400}>
      <form onSubmit={(event) => void confirm(event)}>
        <Stack>
          <Text size="sm">This change needs a proof from the last 15 minutes.</Text>
          {me.has_second_factor ? (
            <TextInput
              label="Code of your authenticator"
              inputMode="numeric"
              autoComplete="one-time-code"
              onChange={(event) => setValue(event.currentTarget.value)}
              {...shared}
            />
          ) : (
            <PasswordInput
              label="Password"
              autoComplete="current-password"
              onChange={(event) => setValue(event.currentTarget.value)}
              {...shared}
            />
          )}
          <Group justify="flex-end">
            <Button variant="default" onClick={close}>
              Cancel
            </Button>
            <Button type="submit">Confirm</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
