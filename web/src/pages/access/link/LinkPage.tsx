/** Redeems a one-time link: an invitation is accepted, a password set anew, or a user signed in. */
import {
  Anchor,
  Button,
  Center,
  Paper,
  PasswordInput,
  SegmentedControl,
  Stack,
  Text,
  TextInput,
  Title,
} from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { Link, useRouter } from '@tanstack/react-router';
import { useEffect, useState } from 'react';

import { api } from '~/api/client';
import { fieldError, Form } from '~/components/forms';

import { CodeInput } from '../CodeInput';
import { type OneTimeLink, takeLink } from './fragment';

const TITLES = {
  invitation: 'Accept the invitation',
  password_reset: 'Set another password',
  sign_in: 'Sign in to Turnpike',
  code: 'Enter a code',
  first_password: 'Choose a password',
  done: 'Done',
  broken: 'This link is not complete',
} as const;
type Step = keyof typeof TITLES;

let taken = takeLink(); // when the page's code is loaded, before anything is drawn

export function LinkPage() {
  const [link, setLink] = useState<OneTimeLink | null>(() => taken);
  const [step, setStep] = useState<Step>(link?.kind ?? 'broken');
  useEffect(() => {
    const another = (): void => {
      taken = takeLink();
      if (taken === null) return;
      setLink(taken);
      setStep(taken.kind);
    };
    window.addEventListener('hashchange', another);
    another();
    return () => window.removeEventListener('hashchange', another);
  }, []);
  useEffect(() => {
    document.title = `${TITLES[step]} · Turnpike`;
  }, [step]);
  return (
    <Center component="main" mih="100vh" p="md">
      <Paper withBorder p="lg" w={380} maw="100%">
        <Stack>
          <Title order={1}>{TITLES[step]}</Title>
          {step === 'invitation' && <Invitation token={link!.token} done={() => setStep('done')} />}
          {step === 'password_reset' && <Reset token={link!.token} done={() => setStep('done')} />}
          {(step === 'sign_in' || step === 'code') && <SignIn token={link!.token} step={step} go={setStep} />}
          {step === 'first_password' && <FirstPassword />}
          {step === 'done' && (
            <>
              <Text role="status">You may sign in now, with your e-mail address and your password.</Text>
              <Button component={Link} to="/sign-in">
                Sign in
              </Button>
            </>
          )}
          {step === 'broken' && (
            <>
              <Text role="alert">Copy the whole link, or ask for another: each is good once.</Text>
              <Anchor component={Link} to="/sign-in">
                To the sign-in page
              </Anchor>
            </>
          )}
        </Stack>
      </Paper>
    </Center>
  );
}

interface NewPasswordProps {
  value: string;
  error?: string;
  set: (value: string) => void;
}

function NewPassword({ value, error, set }: NewPasswordProps) {
  return (
    <PasswordInput
      label="New password"
      description="At least 12 characters."
      name="password"
      autoComplete="new-password"
      required
      value={value}
      error={error}
      onChange={(event) => set(event.currentTarget.value)}
    />
  );
}

function Invitation({ token, done }: { token: string; done: () => void }) {
  const [who, setWho] = useState<'new' | 'user'>('new');
  const [name, setName] = useState('');
  const [email, setEmail] = useState('');
  const [password, setPassword] = useState('');
  const accept = useMutation({
    mutationFn: () =>
      api.POST('/admin/v1/invitations/accept', {
        body: who === 'new' ? { token, name, password } : { token, email, password },
      }),
    onSuccess: done,
  });
  const { error } = accept;
  return (
    <Form place="door" error={error} pending={accept.isPending} action="Accept" submit={() => accept.mutate()}>
      <SegmentedControl
        fullWidth
        aria-label="Account"
        value={who}
        onChange={(value) => setWho(value as 'new' | 'user')}
        data={[
          { value: 'new', label: 'I am new here' },
          { value: 'user', label: 'I have an account' },
        ]}
      />
      {who === 'new' ? (
        <>
          <TextInput
            label="Your name"
            name="name"
            autoComplete="name"
            required
            value={name}
            error={fieldError(error, 'name')}
            onChange={(event) => setName(event.currentTarget.value)}
          />
          <NewPassword value={password} error={fieldError(error, 'password')} set={setPassword} />
        </>
      ) : (
        <>
          <TextInput
            label="Your e-mail address"
            description="Only if it is another than the invited one."
            type="email"
            name="email"
            autoComplete="username"
            value={email}
            error={fieldError(error, 'email')}
            onChange={(event) => setEmail(event.currentTarget.value)}
          />
          <PasswordInput
            label="Your password"
            name="password"
            autoComplete="current-password"
            required
            value={password}
            error={fieldError(error, 'password')}
            onChange={(event) => setPassword(event.currentTarget.value)}
          />
        </>
      )}
    </Form>
  );
}

function Reset({ token, done }: { token: string; done: () => void }) {
  const [password, setPassword] = useState('');
  const reset = useMutation({
    mutationFn: () => api.POST('/admin/v1/password-resets/redeem', { body: { token, password } }),
    onSuccess: done,
  });
  return (
    <Form
      place="door"
      error={reset.error}
      pending={reset.isPending}
      action="Set the password"
      submit={() => reset.mutate()}
    >
      <NewPassword value={password} error={fieldError(reset.error, 'password')} set={setPassword} />
    </Form>
  );
}

function SignIn({ token, step, go }: { token: string; step: 'sign_in' | 'code'; go: (step: Step) => void }) {
  const [code, setCode] = useState('');
  const queries = useQueryClient();
  const router = useRouter();
  const signIn = useMutation({
    mutationFn: async (entered: string) => {
      const { data } =
        step === 'sign_in'
          ? await api.POST('/admin/v1/session/link', { body: { token } })
          : await api.POST('/admin/v1/session/second-factor', { body: { code: entered } });
      if (data!.state === 'second_factor_required') return 'code' as const;
      const me = (await api.GET('/admin/v1/users/me')).data!;
      return me.has_password ? ('entered' as const) : ('first_password' as const);
    },
    onSuccess: async (next) => {
      if (next !== 'entered') return go(next);
      queries.clear();
      await router.navigate({ to: '/' });
      return undefined;
    },
  });
  return (
    <Form
      place="door"
      error={signIn.error}
      pending={signIn.isPending}
      action="Sign in"
      submit={() => signIn.mutate(code)}
    >
      {step === 'sign_in' ? (
        <Text size="sm">This link signs you in once.</Text>
      ) : (
        <CodeInput
          value={code}
          error={fieldError(signIn.error, 'code')}
          set={setCode}
          complete={(value) => signIn.mutate(value)}
        />
      )}
    </Form>
  );
}

function FirstPassword() {
  const [password, setPassword] = useState('');
  const queries = useQueryClient();
  const router = useRouter();
  const enter = async (): Promise<void> => {
    queries.clear();
    await router.navigate({ to: '/' });
  };
  const set = useMutation({
    mutationFn: () => api.POST('/admin/v1/users/me/password', { body: { new: password } }),
    onSuccess: enter,
  });
  return (
    <>
      <Form
        place="door"
        error={set.error}
        pending={set.isPending}
        action="Set the password"
        submit={() => set.mutate()}
      >
        <Text size="sm">You are signed in. With a password you can come back without another link.</Text>
        <NewPassword value={password} error={fieldError(set.error, 'new')} set={setPassword} />
      </Form>
      <Button variant="subtle" onClick={() => void enter()}>
        Later
      </Button>
    </>
  );
}
