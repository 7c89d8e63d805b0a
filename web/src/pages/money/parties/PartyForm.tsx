/** The form of a party of invoices: sends only the fields that were changed. */
import { Alert, Button, SimpleGrid, Stack, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';

import { type Schema, WAITS } from '~/api/client';
import { fieldError, Form } from '~/components/forms';

import { type Field, FieldInput, initialValues, type Values } from '../components/ActionDialog';

/** What both parties have. */
export const PARTY_FIELDS: readonly Field[] = [
  { name: 'name', label: 'Name', required: true },
  { name: 'address', label: 'Address', kind: 'lines', about: 'One line a row.' },
  { name: 'postal_code', label: 'Postal code' },
  { name: 'city', label: 'City' },
  { name: 'country', label: 'Country', about: 'Two letters (ISO 3166), such as DE.' },
  { name: 'vat_id', label: 'VAT id' },
  { name: 'email', label: 'E-mail' },
  { name: 'endpoint', label: 'Electronic address', about: 'Where e-invoices are sent to or from.' },
  { name: 'endpoint_scheme', label: 'Scheme of that address', about: 'A code of the list EAS, such as 0204.' },
];

/** From which day on the facts hold that tax follows from. */
export const VALID_FROM: Field = {
  name: 'valid_from',
  label: 'Taxes change from',
  kind: 'date',
  about:
    'The first day of a changed country, VAT id, rate, seller or treatment; empty: today. All else changes at once.',
};

type Version = Schema<'SellerVersion'> | Schema<'BuyerVersion'>;

/** What tax follows from, by its first day, where that ever changed. */
export function Versions({ versions }: { versions: readonly Version[] }) {
  if (versions.length === 0) return null;
  return (
    <Stack gap={2} mb="sm" role="note" aria-label="What tax follows from, by day">
      {versions.map((version) => (
        <Text key={version.valid_from ?? ''} size="sm" c="dimmed">
          {version.valid_from === null ? 'At first' : `From ${version.valid_from}`}: {factsOf(version)}
        </Text>
      ))}
    </Stack>
  );
}

function factsOf(version: Version): string {
  const own =
    'rates' in version
      ? Object.entries(version.rates).map(([country, rate]) => `${country} ${rate} %`)
      : [`sold to by ${version.seller}`, version.treatment, version.exemption];
  return [version.country, version.vat_id, ...own].filter((text) => text !== '').join(', ');
}

interface PartyFormProps {
  fields: readonly Field[];
  /** The values as they are now, by the fields' names. */
  values: Values;
  disabled: boolean;
  /** Sends what was changed; with `dryRun` it is only checked. Answers the warning about the party, if there is one. */
  save: (changed: Values, dryRun: boolean) => Promise<string>;
}

export function PartyForm({ fields, values: before, disabled, save }: PartyFormProps) {
  const [values, setValues] = useState<Values>(() => ({ ...initialValues(fields), ...before }));
  const changed = Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== (before[name] ?? '')));
  const nothing = Object.keys(changed).length === 0;
  const mutation = useMutation({
    mutationFn: (dryRun: boolean) => save(changed, dryRun),
    onSuccess: (answer, dryRun) => {
      const saved = 'It was saved. Documents that were issued stay as they are.';
      if (!dryRun) notifications.show({ message: answer === WAITS ? WAITS : saved });
    },
  });
  return (
    <Form
      submit={() => mutation.mutate(false)}
      error={mutation.error}
      pending={mutation.isPending && !mutation.variables}
      action="Save"
      disabled={disabled || nothing}
      place="page"
      buttons={
        <Button
          variant="default"
          disabled={disabled || nothing}
          loading={mutation.isPending && mutation.variables}
          onClick={() => mutation.mutate(true)}
        >
          Check
        </Button>
      }
    >
      <SimpleGrid component="fieldset" bd={0} p={0} m={0} cols={{ base: 1, sm: 2 }} {...{ disabled }}>
        {fields.map((field) => (
          <FieldInput
            key={field.name}
            field={field}
            value={values[field.name] ?? ''}
            error={fieldError(mutation.error, field.path ?? field.name)}
            change={(value) => {
              mutation.reset();
              setValues({ ...values, [field.name]: value });
            }}
          />
        ))}
      </SimpleGrid>
      {mutation.isSuccess && mutation.variables && (
        <Alert variant="outline" color="gray" role="status">
          It would be accepted. {mutation.data}
        </Alert>
      )}
    </Form>
  );
}

/** The rows of a text without the empty ones. */
export function rowsOf(text: string): string[] {
  return text
    .split('\n')
    .map((row) => row.trim())
    .filter((row) => row !== '');
}

/** The changed fields as the API has them: texts of several rows as lists. */
export function toBody(changed: Values, lists: readonly string[]): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(changed).map(([name, value]) => [name, lists.includes(name) ? rowsOf(value) : value]),
  );
}
