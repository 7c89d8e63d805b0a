/** Sign in with e-mail address and password, and with a code where the user has a second factor. */
import { Anchor, Button, Center, Paper, PasswordInput, Stack, Text, TextInput, Title } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { getRouteApi, useRouter } from '@tanstack/react-router';
import { useEffect, useState } from 'react';

import { api } from '~/api/client';
import { fieldError, Form } from '~/components/forms';

import { CodeInput } from './CodeInput';
import { OtherWays } from './provider/OtherWays';

const route = getRouteApi('/sign-in');

export function SignInPage() {
  const { next } = route.useSearch();
  const queries = useQueryClient();
  const router = useRouter();
  const [email, setEmail] = useState('');
  const [password, setPassword] = useState('');
  const [code, setCode] = useState<string | null>(null);
  useEffect(() => {
    document.title = 'Sign in · Turnpike';
  }, []);
  const enter = async (): Promise<void> => {
    queries.clear();
    await router.navigate({ href: ownPath(next) });
  };
  const signIn = useMutation({
    mutationFn: async (entered: string | null) => {
      const { data } =
        entered === null
          ? await api.POST('/admin/v1/session', { body: { email, password } })
          : await api.POST('/admin/v1/session/second-factor', { body: { code: entered } });
      return data!;
    },
    onSuccess: async (step) => {
      if (step.state === 'second_factor_required') return setCode('');
      await enter();
      return undefined;
    },
  });
  const again = (): void => {
    setCode(null);
    setPassword('');
    signIn.reset();
  };
  return (
    <Center component="main" mih="100vh" p="md">
      <Paper withBorder p="lg" w={360} maw="100%">
        <Stack>
          <Title order={1}>Sign in to Turnpike</Title>
          <Form
            place="door"
            submit={() => signIn.mutate(code)}
            error={signIn.error}
            pending={signIn.isPending}
            action="Sign in"
          >
            {code === null ? (
              <>
                <TextInput
                  label="E-mail address"
                  type="email"
                  name="email"
                  autoComplete="username"
                  required
                  autoFocus
                  value={email}
                  error={fieldError(signIn.error, 'email')}
                  onChange={(event) => setEmail(event.currentTarget.value)}
                />
                <PasswordInput
                  label="Password"
                  name="password"
                  autoComplete="current-password"
                  required
                  value={password}
                  error={fieldError(signIn.error, 'password')}
                  onChange={(event) => setPassword(event.currentTarget.value)}
                />
              </>
            ) : (
              <CodeInput
                value={code}
                error={fieldError(signIn.error, 'code')}
                set={setCode}
                complete={(value) => signIn.mutate(value)}
              />
            )}
          </Form>
          {code === null && <OtherWays next={next} done={enter} />}
          {code === null ? (
            <Text size="sm" c="dimmed">
              Without a password, or without your authenticator, ask an administrator for a link.
            </Text>
          ) : (
            <Button variant="subtle" onClick={again}>
              Start again
            </Button>
          )}
          <Anchor href="/docs" size="sm">
            API documentation
          </Anchor>
        </Stack>
      </Paper>
    </Center>
  );
}

/** The page to go to: a path of the console itself, whatever the URL says. */
export function ownPath(next: string | undefined): string {
  if (next === undefined || !/^\/(?![/\\])/.test(next)) return '/';
  const resolved = new URL(next, 'http://console.invalid');
  if (resolved.origin !== 'http://console.invalid') return '/';
  return resolved.pathname.replace(/^\/+/, '/') + resolved.search; // "/x/..//host" resolves to "//host"
}
