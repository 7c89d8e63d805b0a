/** Sets another password. The user's other sessions end then. */
import { PasswordInput, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { type Me, meOptions } from '~/access/rights';
import { api } from '~/api/client';
import { fieldError, Form } from '~/components/forms';

import { Section } from '../Section';

export function PasswordSection({ me }: { me: Me }) {
  const [current, setCurrent] = useState('');
  const [another, setAnother] = useState('');
  const queries = useQueryClient();
  const change = useMutation({
    mutationFn: () =>
      api.POST('/admin/v1/users/me/password', {
        body: me.has_password ? { new: another, current } : { new: another },
      }),
    onSuccess: async () => {
      setCurrent('');
      setAnother('');
      notifications.show({ message: 'The password is set. Your other sessions have ended.' });
      await queries.invalidateQueries({ queryKey: meOptions.queryKey });
    },
  });
  return (
    <Section title="Password">
      <Form
        submit={() => change.mutate()}
        error={change.error}
        pending={change.isPending}
        action="Set the password"
        place="page"
      >
        {/* Password managers look for the address beside the password. */}
        <input type="text" name="email" autoComplete="username" defaultValue={me.email} hidden readOnly />
        {me.has_password ? (
          <PasswordInput
            label="Present password"
            name="current"
            autoComplete="current-password"
            required
            value={current}
            error={fieldError(change.error, 'current')}
            onChange={(event) => setCurrent(event.currentTarget.value)}
          />
        ) : (
          <Text size="sm">You have no password yet: you came by a link.</Text>
        )}
        <PasswordInput
          label="New password"
          description="At least 12 characters."
          name="new"
          autoComplete="new-password"
          required
          value={another}
          error={fieldError(change.error, 'new')}
          onChange={(event) => setAnother(event.currentTarget.value)}
        />
      </Form>
    </Section>
  );
}
