/** Where an identity provider sends the browser back to: finishes what was begun, and goes on to the page that was left. */
import { Anchor, Center, Loader, Paper, Stack, Title } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useRouter } from '@tanstack/react-router';
import { useEffect } from 'react';

import { api } from '~/api/client';
import { FormProblem } from '~/components/forms';

import { ownPath } from '../SignInPage';
import { takeNext } from './identity';

/** The provider's answer, which is taken out of the address: its code is a secret for a moment. */
const answer = new URLSearchParams(location.search);
history.replaceState(history.state, '', location.pathname);

export function ProviderPage() {
  const queries = useQueryClient();
  const router = useRouter();
  const finish = useMutation({
    mutationFn: () =>
      api.POST('/admin/v1/session/provider/finish', {
        body: {
          state: answer.get('state') ?? '',
          code: answer.get('code') ?? '',
          iss: answer.get('iss'),
          error: answer.get('error') ?? '',
        },
      }),
    onSuccess: async () => {
      queries.clear();
      await router.navigate({ href: ownPath(takeNext()) });
    },
  });
  const { mutate } = finish;
  useEffect(() => {
    document.title = 'Sign in · Turnpike';
    mutate();
  }, [mutate]);
  return (
    <Center component="main" mih="100vh" p="md">
      <Paper withBorder p="lg" w={360} maw="100%">
        <Stack>
          <Title order={1}>Sign in to Turnpike</Title>
          {finish.error === null ? <Loader aria-label="Signing in" /> : <FormProblem error={finish.error} />}
          {finish.error !== null && <Anchor href="/console/sign-in">Begin again</Anchor>}
        </Stack>
      </Paper>
    </Center>
  );
}
