/** Forms: the server's own words at the field that is wrong, confirmation of what cannot be undone, secrets shown once. */
import { Alert, Button, Code, CopyButton, Group, Modal, Stack, Text, TextInput } from '@mantine/core';
import { type ReactNode, useState } from 'react';

import { asProblem } from '~/api/problem';
import { saveFile } from '~/api/client';

import { useHeldOpen } from './SecretModal';

/** The message for one field (`name`, or `limits.requests`), if the problem is with it. */
export function fieldError(error: unknown, field: string): string | undefined {
  if (error === null || error === undefined) return undefined;
  const problem = asProblem(error);
  return problem.field.replace(/^\$\./, '') === field ? problem.message : undefined;
}

/** What is wrong with none of these fields, above the form's buttons. */
export function FormProblem({ error, fields }: { error: unknown; fields: readonly string[] }) {
  if (error === null || error === undefined || fields.some((field) => fieldError(error, field))) return null;
  const problem = asProblem(error);
  return (
    <Alert color="red" variant="outline" role="alert">
      {problem.message}
      {problem.status >= 500 && problem.requestId && (
        <Text size="xs">
          Request <Code>{problem.requestId}</Code>
        </Text>
      )}
    </Alert>
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
      <form
        onSubmit={(event) => {
          event.preventDefault();
          confirm();
        }}
      >
        <Stack>
          <div>{children}</div>
          {typed !== undefined && (
            <TextInput
              label={`Type ${typed} to confirm`}
              value={text}
              onChange={(event) => setText(event.currentTarget.value)}
              data-autofocus
            />
          )}
          <FormProblem error={error} fields={[]} />
          <Group justify="flex-end">
            <Button variant="default" onClick={close}>
              Cancel
            </Button>
            <Button type="submit" color="red.9" loading={pending} disabled={typed !== undefined && text !== typed}>
              {action}
            </Button>
          </Group>
        </Stack>
      </form>
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
