/** Forms: the server's own words at the field that is wrong, confirmation of what cannot be undone, secrets shown once. */
import { Alert, Button, Code, CopyButton, Group, Modal, Stack, Text, TextInput } from '@mantine/core';
import { type ReactNode, useEffect, useLayoutEffect, useRef, useState } from 'react';

import { asProblem } from '~/api/problem';
import { saveFile } from '~/api/client';

import { useHeldOpen } from './SecretModal';

/**
 * The message for one field (`name`, or `limits.requests`), if the problem is with it or with a part of it: that of
 * `networks[1]` stands at `networks`.
 */
export function fieldError(error: unknown, field: string): string | undefined {
  if (error === null || error === undefined) return undefined;
  const problem = asProblem(error);
  const rest = problem.field.startsWith(field) ? problem.field.slice(field.length) : '-';
  return rest === '' || /^[.[]/.test(rest) ? problem.words : undefined;
}

/** What is wrong, where no field of the form around it says so; else that field gets the focus. */
export function FormProblem({ error }: { error: unknown }) {
  const alert = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (alert.current !== null) alert.current.hidden = fieldWith(error, alert.current) !== undefined;
  });
  useEffect(() => {
    if (alert.current === null) return;
    fieldWith(error, alert.current)?.querySelector<HTMLElement>('input, select, textarea, button')?.focus();
  }, [error]);
  if (error === null || error === undefined) return null;
  const problem = asProblem(error);
  return (
    <Alert ref={alert} color="red" variant="outline" role="alert">
      {problem.message}
      {problem.status >= 500 && problem.requestId && (
        <Text size="xs">
          Request <Code>{problem.requestId}</Code>
        </Text>
      )}
    </Alert>
  );
}

/** The field that shows the problem, of the form around an element. */
function fieldWith(error: unknown, within: HTMLElement): HTMLElement | undefined {
  const { words } = asProblem(error);
  const messages = within.closest('form')?.querySelectorAll('.mantine-InputWrapper-error') ?? [];
  return [...messages].find((each) => each.textContent === words)?.parentElement ?? undefined;
}

interface FormProps {
  /** The fields, and what is said about them. */
  children: ReactNode;
  submit: () => void;
  /** What went wrong; it stands at its field, which gets the focus, or above the buttons. */
  error: unknown;
  pending: boolean;
  /** What the button that sends it says. */
  action: string;
  /** It cannot be undone, or people would regret it. */
  danger?: boolean;
  disabled?: boolean;
  cancel?: () => void;
  /** Buttons beside the one that sends it. */
  buttons?: ReactNode;
  /** Where the form is: `door` is the page before one is signed in. */
  place?: 'dialog' | 'page' | 'door';
}

/** A form with its buttons. */
export function Form({ children, submit, error, pending, action, place = 'dialog', ...more }: FormProps) {
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <Stack gap={place === 'page' ? 'sm' : 'md'}>
        {children}
        <FormProblem error={error} />
        <Group justify={place === 'dialog' ? 'flex-end' : undefined} grow={place === 'door'}>
          {more.cancel !== undefined && (
            <Button variant="default" onClick={more.cancel}>
              Cancel
            </Button>
          )}
          {more.buttons}
          <Button
            type="submit"
            variant={place === 'page' ? 'default' : 'filled'}
            color={more.danger ? 'red.9' : undefined}
            loading={pending}
            disabled={more.disabled}
          >
            {action}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

interface ConfirmProps {
  opened: boolean;
  close: () => void;
  title: string;
  /** What happens then, and whether it can be undone. */
  children: ReactNode;
  action: string;
  /** A name that must be typed first; none for what can be undone. */
  typed?: string;
  pending: boolean;
  error: unknown;
  confirm: () => void;
}

/** Asks before something is done that people would regret. */
export function Confirm({ opened, close, title, children, action, typed, pending, error, confirm }: ConfirmProps) {
  const [text, setText] = useState('');
  return (
    <Modal opened={opened} onClose={close} title={title}>
      <Form
        submit={confirm}
        error={error}
        pending={pending}
        action={action}
        danger
        disabled={typed !== undefined && text !== typed}
        cancel={close}
      >
        <div>{children}</div>
        {typed !== undefined && (
          <TextInput
            label={`Type ${typed} to confirm`}
            value={text}
            onChange={(event) => setText(event.currentTarget.value)}
            data-autofocus
          />
        )}
      </Form>
    </Modal>
  );
}

interface SecretOnceProps {
  secret: string;
  variable: string;
  file: string;
  /** The user says that it is kept. */
  done: () => void;
}

/** A secret that is never shown again: copy it, or save it as a file. The dialog around it stays until then. */
export function SecretOnce({ secret, variable, file, done }: SecretOnceProps) {
  useHeldOpen();
  return (
    <Stack gap="xs">
      <Alert color="yellow.9" variant="outline" role="note">
        This is shown once. Keep it where nobody else reads it.
      </Alert>
      <Code block className="wraps" data-secret>
        {secret}
      </Code>
      <Group>
        <CopyButton value={secret}>
          {({ copied, copy }) => <Button onClick={copy}>{copied ? 'Copied' : 'Copy'}</Button>}
        </CopyButton>
        <Button
          variant="default"
          onClick={() => saveFile(new Blob([`${variable}=${secret}\n`], { type: 'text/plain' }), file)}
        >
          Save as {file}
        </Button>
        <Button variant="default" ml="auto" onClick={done}>
          I have kept it
        </Button>
      </Group>
    </Stack>
  );
}
