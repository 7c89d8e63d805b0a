/** What the account is known by beside its password: passkeys, and identity providers. */
import { Button, Group, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { api, query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { fieldError, Form, FormProblem } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { Instant } from '~/components/values';

import { makePasskey, proveBy } from '../provider/identity';
import { Section } from '../Section';

const PASSKEYS = '/admin/v1/users/me/passkeys';
const IDENTITIES = '/admin/v1/users/me/identities';

export function PasskeysSection() {
  const [name, setName] = useState('');
  const passkeys = query.useQuery('get', PASSKEYS);
  const queries = useQueryClient();
  const again = () => queries.invalidateQueries({ queryKey: ['get', PASSKEYS] });
  const add = useMutation({
    mutationFn: async () => {
      const { data } = await api.POST(`${PASSKEYS}/challenge`);
      await api.POST(PASSKEYS, { body: { credential: await makePasskey(data!.options), name } });
    },
    onSuccess: async () => {
      setName('');
      await again();
    },
  });
  const remove = useMutation({
    mutationFn: (passkey: string) => api.DELETE(`${PASSKEYS}/{passkey}`, { params: { path: { passkey } } }),
    onSuccess: again,
  });
  const columns: Column<Schema<'PasskeyObject'>>[] = [
    { header: 'Name', cell: (one) => one.name },
    { header: 'Since', cell: (one) => <Instant at={one.created_at} distance /> },
    { header: 'Last used', cell: (one) => <Instant at={one.used_at} distance /> },
    {
      header: 'Action',
      cell: (one) => (
        <Button
          size="compact-sm"
          variant="default"
          onClick={() => remove.mutate(one.id)}
          aria-label={`Remove the passkey ${one.name}`}
        >
          Remove
        </Button>
      ),
    },
  ];
  return (
    <Section title="Passkeys">
      <Loaded query={passkeys} what="your passkeys">
        {(found) => (
          <DataTable
            caption="Your passkeys"
            columns={columns}
            rows={found.data}
            rowKey={(one) => one.id}
            empty="With a passkey your device signs you in: nothing to remember, and nothing to be phished."
          />
        )}
      </Loaded>
      <FormProblem error={remove.error} />
      <Form
        submit={() => add.mutate()}
        error={add.error}
        pending={add.isPending}
        action="Add a passkey"
        disabled={name === ''}
        place="page"
      >
        <TextInput
          label="Name of a new passkey"
          name="passkey"
          value={name}
          error={fieldError(add.error, 'name')}
          onChange={(event) => setName(event.currentTarget.value)}
        />
      </Form>
    </Section>
  );
}

export function IdentitiesSection() {
  const identities = query.useQuery('get', IDENTITIES);
  const offered = query.useQuery('get', '/admin/v1/sign-in-providers');
  const queries = useQueryClient();
  const link = useMutation({ mutationFn: (provider: string) => proveBy(provider, 'link', '/account') });
  const unlink = useMutation({
    mutationFn: (identity: string) => api.DELETE(`${IDENTITIES}/{identity}`, { params: { path: { identity } } }),
    onSuccess: () => queries.invalidateQueries({ queryKey: ['get', IDENTITIES] }),
  });
  const columns: Column<Schema<'LinkedIdentityObject'>>[] = [
    { header: 'Provider', cell: (one) => one.provider },
    { header: 'Of', cell: (one) => one.tenant ?? 'the platform' },
    { header: 'As', cell: (one) => one.email || '–' },
    { header: 'Last used', cell: (one) => <Instant at={one.used_at} distance /> },
    {
      header: 'Action',
      cell: (one) => (
        <Button
          size="compact-sm"
          variant="default"
          onClick={() => unlink.mutate(one.id)}
          aria-label={`Unlink ${one.provider}`}
        >
          Unlink
        </Button>
      ),
    },
  ];
  return (
    <Section title="Identity providers">
      <Loaded query={identities} what="your identity providers">
        {(found) => (
          <DataTable
            caption="Your identity providers"
            columns={columns}
            rows={found.data}
            rowKey={(one) => one.id}
            empty="No identity provider knows you yet."
          />
        )}
      </Loaded>
      <FormProblem error={unlink.error ?? link.error} />
      <Group>
        {offered.data?.data.map((one) => (
          <Button key={one.id} variant="default" onClick={() => link.mutate(one.id)}>
            Link {one.name}
          </Button>
        ))}
      </Group>
    </Section>
  );
}
