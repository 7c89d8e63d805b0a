/** The other ways to sign in than by password: a passkey, and identity providers. */
import { Button, Stack, TextInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';

import { api, query } from '~/api/client';
import { FormProblem } from '~/components/forms';

import { askAuthenticator, signInBy } from './identity';

interface OtherWaysProps {
  next: string | undefined;
  done: () => Promise<void>;
}

export function OtherWays({ next, done }: OtherWaysProps) {
  const [place, setPlace] = useState('');
  const offered = query.useQuery('get', '/admin/v1/sign-in-providers');
  const go = useMutation({ mutationFn: (provider: string) => signInBy(provider, next) });
  const find = useMutation({
    mutationFn: async () => {
      const asked = place.includes('@') ? { email: place } : { tenant: place };
      return (await api.GET('/admin/v1/sign-in-providers', { params: { query: asked } })).data!.data;
    },
  });
  const passkey = useMutation({
    mutationFn: async () => {
      const { data } = await api.POST('/admin/v1/session/passkey/challenge');
      const credential = await askAuthenticator(data!.options);
      await api.POST('/admin/v1/session/passkey', { body: { credential } });
      await done();
    },
  });
  const found = [...(offered.data?.data ?? []), ...(find.data ?? [])];
  return (
    <Stack gap="xs">
      <Button variant="default" loading={passkey.isPending} onClick={() => passkey.mutate()}>
        Sign in with a passkey
      </Button>
      {found.map((one) => (
        <Button key={one.id} variant="default" loading={go.isPending} onClick={() => go.mutate(one.id)}>
          Sign in by {one.name}
        </Button>
      ))}
      <TextInput
        label="Your organisation"
        description="Its name here, or your e-mail address, to sign in by its identity provider."
        name="organisation"
        value={place}
        error={find.data?.length === 0 ? 'Nothing is known of it.' : undefined}
        onChange={(event) => setPlace(event.currentTarget.value)}
        rightSectionWidth={64}
        rightSection={
          <Button size="compact-sm" variant="default" disabled={place === ''} onClick={() => find.mutate()}>
            Find
          </Button>
        }
      />
      <FormProblem error={passkey.error ?? go.error ?? find.error} />
    </Stack>
  );
}
