/** One's own account: name, password, second factor, sessions and the keyboard. */
import { Group, Stack, Switch, Table, Text, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { isOperator, type Me, meOptions, useMe } from '~/access/rights';
import { api } from '~/api/client';
import { useShortcutsOn } from '~/app/shortcuts/setting';
import { useTenants } from '~/app/TenantSwitcher';
import { fieldError, Form } from '~/components/forms';
import { Page } from '~/components/Page';
import { Copied } from '~/components/values';

import { Section } from '../Section';
import { IdentitiesSection, PasskeysSection } from './IdentitySections';
import { PasswordSection } from './PasswordSection';
import { SecondFactorSection } from './SecondFactorSection';
import { SessionsSection } from './SessionsSection';

export function AccountPage() {
  const me = useMe();
  return (
    <Page title="Your account" about={me.email}>
      <Stack maw={760}>
        <Profile me={me} />
        <PasswordSection me={me} />
        <SecondFactorSection me={me} />
        <PasskeysSection />
        <IdentitiesSection />
        <SessionsSection />
        <Keyboard />
      </Stack>
    </Page>
  );
}

function Profile({ me }: { me: Me }) {
  const [name, setName] = useState(me.name);
  const [email, setEmail] = useState(me.email);
  const queries = useQueryClient();
  const change = useMutation({
    mutationFn: () =>
      api.PATCH('/admin/v1/users/me', {
        body: { name: name === me.name ? null : name, email: email === me.email ? null : email },
      }),
    onSuccess: () => queries.invalidateQueries({ queryKey: meOptions.queryKey }),
  });
  return (
    <Section title="You">
      <Form
        submit={() => change.mutate()}
        error={change.error}
        pending={change.isPending}
        action="Save"
        disabled={name === me.name && email === me.email}
        place="page"
      >
        <TextInput
          label="Name"
          name="name"
          autoComplete="name"
          required
          value={name}
          error={fieldError(change.error, 'name')}
          onChange={(event) => setName(event.currentTarget.value)}
        />
        <TextInput
          label="E-mail address"
          description={isOperator(me) ? undefined : 'Operators change it.'}
          type="email"
          name="email"
          autoComplete="email"
          required
          readOnly={!isOperator(me)}
          value={email}
          error={fieldError(change.error, 'email')}
          onChange={(event) => setEmail(event.currentTarget.value)}
        />
      </Form>
      <Roles me={me} />
      <Group gap="xs">
        <Text size="sm">Your id:</Text>
        <Copied text={me.id} label="your id" />
      </Group>
    </Section>
  );
}

function Roles({ me }: { me: Me }) {
  const tenants = useTenants();
  const place = (one: Me['memberships'][number]): string => {
    if (one.tenant === null) return 'the platform';
    const tenant = tenants?.find(({ id }) => id === one.tenant)?.name ?? one.tenant;
    return one.project === null ? `the tenant ${tenant}` : `a project of ${tenant}, ${one.project}`;
  };
  if (me.memberships.length === 0) {
    return <Text size="sm">You have no role anywhere yet. Ask an administrator for an invitation.</Text>;
  }
  return (
    <Table withRowBorders={false} verticalSpacing={2} aria-label="Your roles">
      <Table.Tbody>
        {me.memberships.map((one) => (
          <Table.Tr key={`${one.tenant}/${one.project}`}>
            <Table.Th scope="row" w={120}>
              {one.role}
            </Table.Th>
            <Table.Td className="wraps">at {place(one)}</Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}

function Keyboard() {
  const [on, setOn] = useShortcutsOn();
  return (
    <Section title="Keyboard">
      <Switch
        label="Single-key shortcuts"
        description="Such as / for the filter and g k for the keys; ? lists them. Kept in this browser."
        checked={on}
        onChange={(event) => setOn(event.currentTarget.checked)}
      />
    </Section>
  );
}
