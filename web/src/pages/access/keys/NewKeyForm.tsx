/** Creates a key: with a name alone at once, or with all that can be said of one. The secret is shown once. */
import { Button, Group, NativeSelect, Paper, Stack, TextInput } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, type Schema } from '~/api/client';
import { fieldError, Form, FormProblem } from '~/components/forms';
import { SecretModal } from '~/components/SecretModal';

import { useProjectsQuery } from '../useProjects';
import { emptyFields, type KeyFields, newKey } from './fields';
import { KeyFieldInputs } from './KeyFieldInputs';
import { KeySecret } from './KeySecret';
import { KEYS_PATH } from './path';

const ADMINISTRATION = '';
const UNCHOSEN = '-';

interface NewKeyFormProps {
  tenant: string;
  tenantId: string;
  /** The name of the project that is looked at, if only one is. */
  project: string | undefined;
}

export function NewKeyForm({ tenant, tenantId, project }: NewKeyFormProps) {
  const me = useMe();
  const read = useProjectsQuery(tenant).data?.data;
  const projects = (read ?? []).filter((one) => may(me, 'keys.write', tenantId, one.id));
  const first = projects.find((one) => one.name === 'default') ?? projects[0];
  const [chosen, setChosen] = useState<string>();
  const [fields, setFields] = useState<KeyFields>(() => emptyFields(''));
  const [opened, { open, close }] = useDisclosure();
  const [made, setMade] = useState<Schema<'KeyWithSecret'> | null>(null);
  const queries = useQueryClient();
  const create = useMutation({
    mutationFn: async (wanted: KeyFields) =>
      (await api.POST(KEYS_PATH, { params: { path: { tenant } }, body: newKey(wanted) }))
        .data as Schema<'KeyWithSecret'>,
    onSuccess: async (key) => {
      setMade(key);
      setFields(emptyFields(''));
      close();
      await queries.invalidateQueries({ queryKey: ['get', KEYS_PATH] });
    },
  });
  // A key that administers is made by choice alone, never because no project is known yet.
  const of = chosen ?? project ?? first?.name;
  const wanted = { ...fields, project: of ?? ADMINISTRATION };
  const submit = (): void => {
    if (of !== undefined) create.mutate(wanted);
  };
  const choices = [
    ...(of === undefined ? [{ value: UNCHOSEN, label: read === undefined ? '…' : 'Choose one' }] : []),
    ...projects.map((one) => ({ value: one.name, label: one.name })),
    ...(may(me, 'keys.write', tenantId) && !onlyInProjects(me, tenantId)
      ? [{ value: ADMINISTRATION, label: 'None: administers the tenant' }]
      : []),
  ];
  const projectInput = (
    <NativeSelect
      label="Project"
      data={choices}
      value={of ?? UNCHOSEN}
      error={fieldError(create.error, 'project')}
      onChange={(event) => setChosen(event.currentTarget.value)}
    />
  );
  return (
    <Paper withBorder p="md" component="section" aria-label="New key">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <Stack gap="xs">
          <Group align="flex-end" gap="sm">
            <TextInput
              label="Name of a new key"
              placeholder="search, staging"
              value={fields.name}
              error={fieldError(create.error, 'name')}
              onChange={(event) => setFields({ ...fields, name: event.currentTarget.value })}
            />
            {projectInput}
            <Button type="submit" loading={create.isPending} disabled={of === undefined}>
              Create key
            </Button>
            <Button variant="default" onClick={open} disabled={of === undefined && read === undefined}>
              More choices
            </Button>
          </Group>
          {!opened && <FormProblem error={create.error} />}
        </Stack>
      </form>
      <SecretModal opened={opened} onClose={close} title="New key" size="lg">
        <Form
          submit={submit}
          error={create.error}
          pending={create.isPending}
          action="Create key"
          disabled={of === undefined}
        >
          {projectInput}
          <KeyFieldInputs
            kind={wanted.project === '' ? 'admin' : 'project'}
            fields={wanted}
            set={setFields}
            error={create.error}
            tenantId={tenantId}
          />
        </Form>
      </SecretModal>
      <SecretModal opened={made !== null} onClose={() => setMade(null)} title="Your new key" size="lg">
        {made !== null && <KeySecret made={made} done={() => setMade(null)} />}
      </SecretModal>
    </Paper>
  );
}

function onlyInProjects(me: ReturnType<typeof useMe>, tenantId: string): boolean {
  return !me.rights.some((one) => one.project === null && (one.tenant === null || one.tenant === tenantId));
}
