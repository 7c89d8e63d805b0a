/**
 * A button that opens a form and sends it: with "Check" where the API can say what would come of it, and the server's own
 * words at the field that is wrong.
 */
import { Alert, Button, Checkbox, FileInput, NativeSelect, Textarea, TextInput } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { useMutation } from '@tanstack/react-query';
import { type ReactNode, useState } from 'react';

import { isPending, WAITS } from '~/api/client';
import { fieldError, Form } from '~/components/forms';
import { SecretModal, useHeldOpen } from '~/components/SecretModal';

export interface Field {
  /** The name of its value, and the path of the server's messages about it unless `path` says another. */
  name: string;
  label: string;
  kind?: 'text' | 'amount' | 'number' | 'date' | 'month' | 'lines' | 'select' | 'check' | 'url' | 'file';
  path?: string;
  about?: string;
  required?: boolean;
  initial?: string;
  /** Of a file: the field that takes its name. */
  fileName?: string;
  options?: readonly (string | { value: string; label: string })[];
}

export type Values = Record<string, string>;

interface ActionDialogProps {
  /** What the button that opens it says. */
  label: string;
  title: string;
  about?: ReactNode;
  fields?: readonly Field[];
  /** What the button that sends it says. */
  action: string;
  /** It cannot be undone. */
  danger?: boolean;
  variant?: 'filled' | 'default' | 'subtle';
  size?: 'xs' | 'sm';
  /** Says what would come of it, and changes nothing. */
  check?: (values: Values) => Promise<ReactNode>;
  /** Does it. Its answer is looked at: what waits for a second person is said so. */
  run: (values: Values) => Promise<unknown>;
  /** What is said when it is done. */
  done: string;
  /** What is shown in place of the form when it is done, where there is more to say. */
  after?: (answer: unknown, close: () => void) => ReactNode;
  /** Called when it is done. */
  onDone?: (answer: unknown) => void;
}

export function ActionDialog(props: ActionDialogProps) {
  const [opened, { open, close }] = useDisclosure();
  return (
    <>
      <Button variant={props.variant ?? 'default'} size={props.size ?? 'sm'} onClick={open}>
        {props.label}
      </Button>
      <SecretModal opened={opened} onClose={close} title={props.title} size="lg">
        {opened && <ActionForm {...props} close={close} />}
      </SecretModal>
    </>
  );
}

function ActionForm({ fields = [], close, ...props }: ActionDialogProps & { close: () => void }) {
  const [values, setValues] = useState<Values>(() => initialValues(fields));
  const check = useMutation({ mutationFn: () => props.check!(values) });
  const run = useMutation({
    mutationFn: () => props.run(values),
    onSuccess: (answer) => {
      notifications.show({
        message: isPending(answer) ? WAITS : props.done,
      });
      props.onDone?.(answer);
      if (props.after === undefined || isPending(answer)) close();
    },
  });
  useHeldOpen(props.after !== undefined && run.isPending);
  if (run.isSuccess && props.after !== undefined) return <>{props.after(run.data, close)}</>;
  const error = run.error ?? check.error;
  const set = (changed: Values): void => {
    check.reset();
    setValues((before) => ({ ...before, ...changed }));
  };
  return (
    <Form
      submit={() => {
        check.reset();
        run.mutate();
      }}
      error={error}
      pending={run.isPending}
      action={props.action}
      danger={props.danger}
      cancel={close}
      buttons={
        props.check !== undefined && (
          <Button
            variant="default"
            loading={check.isPending}
            onClick={(event) => {
              run.reset();
              if (event.currentTarget.form?.reportValidity()) check.mutate();
            }}
          >
            Check
          </Button>
        )
      }
    >
      {props.about !== undefined && <div>{props.about}</div>}
      {fields.map((field, index) => (
        <FieldInput
          key={field.name}
          field={field}
          value={values[field.name] ?? ''}
          error={fieldError(error, field.path ?? field.name)}
          focused={index === 0}
          change={(value) => set({ [field.name]: value })}
          choose={(file) => void file.text().then((text) => set({ [field.name]: text, [field.fileName!]: file.name }))}
        />
      ))}
      {check.isSuccess && (
        <Alert variant="outline" color="gray" title="What would come of it" role="status">
          {check.data}
        </Alert>
      )}
    </Form>
  );
}

/** The values with which a form begins. */
export function initialValues(fields: readonly Field[]): Values {
  return Object.fromEntries(fields.map((field) => [field.name, field.initial ?? '']));
}

interface FieldInputProps {
  field: Field;
  value: string;
  error: string | undefined;
  focused?: boolean;
  change: (value: string) => void;
  /** Takes a file that was chosen. */
  choose?: (file: File) => void;
}

/** The input of a field. */
export function FieldInput({ field, value, error, focused = false, change, choose }: FieldInputProps) {
  const shared = {
    label: field.label,
    description: field.about,
    required: field.required,
    error,
    'data-autofocus': focused || undefined,
  };
  const typed = {
    ...shared,
    value,
    onChange: (event: { currentTarget: { value: string } }) => change(event.currentTarget.value),
  };
  switch (field.kind) {
    case 'select':
      return <NativeSelect {...typed} data={[...(field.options ?? [])]} />;
    case 'lines':
      return <Textarea {...typed} autosize minRows={2} maxRows={10} />;
    case 'check':
      return (
        <Checkbox
          label={field.label}
          description={field.about}
          error={error}
          checked={value === 'yes'}
          onChange={(event) => change(event.currentTarget.checked ? 'yes' : '')}
        />
      );
    case 'file':
      return (
        <FileInput
          {...shared}
          placeholder="Choose a file"
          clearable
          onChange={(file) => {
            if (file === null) change('');
            else choose?.(file);
          }}
        />
      );
    case 'amount':
      return <TextInput {...typed} inputMode="decimal" autoComplete="off" placeholder="0.00" />;
    case 'number':
      return <TextInput {...typed} inputMode="numeric" autoComplete="off" />;
    case 'date':
      return <TextInput {...typed} type="date" />;
    case 'month':
      return <TextInput {...typed} placeholder="2026-11" pattern="\d{4}-\d{2}" title="A month such as 2026-11" />;
    case 'url':
      return <TextInput {...typed} type="url" placeholder="https://" />;
    default:
      return <TextInput {...typed} />;
  }
}
