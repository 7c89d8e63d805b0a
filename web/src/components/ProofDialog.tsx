/** Asks for the password or a code before something dangerous is done, when the server wants a fresh proof. */
import { Modal, PasswordInput, Text, TextInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useEffect, useState } from 'react';

import type { Me } from '~/access/rights';
import { api } from '~/api/client';
import { fieldError, Form } from './forms';
import { proofOfUser } from '~/api/proof';

interface Waiting {
  done: () => void;
  closed: (reason: Error) => void;
}

export function ProofDialog({ me }: { me: Me }) {
  const [waiting, setWaiting] = useState<Waiting | null>(null);
  const [value, setValue] = useState('');
  useEffect(() => proofOfUser.register(() => new Promise((done, closed) => setWaiting({ done, closed }))), []);
  const confirm = useMutation({
    mutationFn: () =>
      api.POST('/admin/v1/session/confirm', { body: me.has_second_factor ? { code: value } : { password: value } }),
    onSuccess: () => {
      waiting?.done();
      end();
    },
  });
  const end = (): void => {
    setWaiting(null);
    setValue('');
    confirm.reset();
  };
  const close = (): void => {
    waiting?.closed(new Error('It was not confirmed, so nothing was changed.'));
    end();
  };
  const error = fieldError(confirm.error, me.has_second_factor ? 'code' : 'password');
  const shared = { value, error, required: true, 'data-autofocus': true } as const;
  return (
    <Modal opened={waiting !== null} onClose={close} title="Confirm that it is you" zIndex={400}>
      <Form
        submit={() => confirm.mutate()}
        error={confirm.error}
        pending={confirm.isPending}
        action="Confirm"
        cancel={close}
      >
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
      </Form>
    </Modal>
  );
}
