/** The keys of operators, who run the platform. */
import { Button, Group, NativeSelect, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { fieldError, Form } from '~/components/forms';
import { Page } from '~/components/Page';
import { SecretModal, useHeldOpen } from '~/components/SecretModal';
import { PagedTable } from '~/components/PagedTable';
import { Instant } from '~/components/values';

import { emptyFields, type Key, type KeyFields, nameOf, newKey } from '../keys/fields';
import { KeyFieldInputs } from '../keys/KeyFieldInputs';
import { KeySecret } from '../keys/KeySecret';
import { KeyState } from '../keys/KeysPage';
import { OPERATOR_KEYS_PATH } from '../keys/path';

export function OperatorKeysPage() {
  const mayChange = may(useMe(), 'platform.write');
  const [creating, setCreating] = useState(false);
  const [now] = useState(() => Date.now());
  const [all, setAll] = useState(false);
  const columns: Column<Key>[] = [
    {
      header: 'Operator',
      cell: (key) => (
        <Link to="/platform/operator-keys/$key" params={{ key: key.id }} className="wraps">
          {nameOf(key)}
        </Link>
      ),
    },
    { header: 'Role', cell: (key) => key.role ?? '–' },
    { header: 'State', cell: (key) => <KeyState apiKey={key} now={now} /> },
    {
      header: 'Last used',
      cell: (key) => (key.last_used_at === null ? 'Never' : <Instant at={key.last_used_at} distance />),
    },
    { header: 'Ends', cell: (key) => <Instant at={key.expires_at} distance /> },
    { header: 'Created', cell: (key) => <Instant at={key.created_at} distance /> },
  ];
  return (
    <Page
      title="Operator keys"
      about="They are for /admin/v1 and for commands, at every tenant and at the platform."
      actions={mayChange && <Button onClick={() => setCreating(true)}>New operator key</Button>}
    >
      <Group>
        <NativeSelect
          label="Show"
          data={[
            { value: 'active', label: 'Valid keys' },
            { value: 'all', label: 'All, revoked ones too' },
          ]}
          value={all ? 'all' : 'active'}
          onChange={(event) => setAll(event.currentTarget.value === 'all')}
        />
      </Group>
      <PagedTable
        caption="Operator keys"
        what="the operator keys"
        columns={columns}
        shown={(key) => all || key.state === 'active'}
        empty="There are no keys of operators."
        queryKey={['get', OPERATOR_KEYS_PATH]}
        read={async (after, signal) =>
          (await api.GET(OPERATOR_KEYS_PATH, { params: { query: { after, limit: 100 } }, signal })).data!
        }
      />
      <SecretModal opened={creating} onClose={() => setCreating(false)} title="New operator key" size="lg">
        <NewOperatorKey done={() => setCreating(false)} />
      </SecretModal>
    </Page>
  );
}

function NewOperatorKey({ done }: { done: () => void }) {
  const [fields, setFields] = useState<KeyFields>(() => ({ ...emptyFields(''), role: 'viewer' }));
  const [user, setUser] = useState('');
  const queries = useQueryClient();
  const create = useMutation({
    mutationFn: async () => {
      const { scopes, networks, expires_at } = newKey(fields);
      const body = {
        name: fields.name,
        role: fields.role,
        user: user || null,
        scopes,
        networks,
        expires_at,
        dry_run: false,
      };
      return (await api.POST(OPERATOR_KEYS_PATH, { body })).data as Schema<'KeyWithSecret'>;
    },
    onSuccess: () => queries.invalidateQueries({ queryKey: ['get', OPERATOR_KEYS_PATH] }),
  });
  useHeldOpen(create.isPending);
  if (create.data !== undefined) return <KeySecret made={create.data} done={done} />;
  return (
    <Form submit={() => create.mutate()} error={create.error} pending={create.isPending} action="Create key">
      <TextInput
        label="Name of the operator"
        description="Who it is; the audit log has it. It stays."
        required
        data-autofocus
        value={fields.name}
        error={fieldError(create.error, 'name')}
        onChange={(event) => setFields({ ...fields, name: event.currentTarget.value })}
      />
      <TextInput
        label="User"
        description="The id or e-mail address of the user who this operator is, if it is one."
        value={user}
        error={fieldError(create.error, 'user')}
        onChange={(event) => setUser(event.currentTarget.value)}
      />
      <KeyFieldInputs kind="operator" fields={fields} set={setFields} error={create.error} />
    </Form>
  );
}
