/** One user: roles, one-time links, ending sessions, disabling. */
import { Button, Group, List, NativeSelect, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { getRouteApi, Link } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import { useTenants } from '~/app/TenantSwitcher';
import { fieldError, Form } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { SecretModal, useHeldOpen } from '~/components/SecretModal';
import { Copied, Instant, State } from '~/components/values';

import { Details } from '../Details';
import { OneTimeLink } from '../OneTimeLink';
import { Reason } from '~/components/Reason';
import { roleOf } from './UsersPage';

type User = Schema<'UserObject'>;
type Doing = 'disable' | 'enable' | 'revoke-sessions';

const PATH = '/admin/v1/users/{user}';
const route = getRouteApi('/signed-in/platform/users/$user');

const DOINGS: Record<Doing, { title: string; what: string; done: string }> = {
  disable: {
    title: 'Disable the user',
    what: 'The user signs in no more, and is signed out everywhere now.',
    done: 'The user is disabled.',
  },
  enable: { title: 'Enable the user', what: 'The user may sign in again.', done: 'The user may sign in again.' },
  'revoke-sessions': {
    title: 'End all sessions',
    what: 'The user is signed out everywhere, and may sign in again.',
    done: 'All sessions of the user have ended.',
  },
};

export function UserPage() {
  const { user } = route.useParams();
  const me = useMe();
  const found = query.useQuery('get', PATH, { params: { path: { user } } });
  const tenants = new Map(useTenants()?.map((one) => [one.id, one.name]));
  const mayChange = may(me, 'members.write') && found.data !== undefined;
  return (
    <Page
      title={found.data?.email ?? 'User'}
      about={<Link to="/platform/users">All users</Link>}
      actions={mayChange && <Actions user={found.data!} own={found.data!.id === me.id} />}
    >
      <Loaded query={found} what="the user" height={240}>
        {(data) => (
          <Details
            label="The user"
            fields={[
              ['Name', data.name || '–'],
              ['Id', <Copied key="id" text={data.id} label="the user's id" />],
              [
                'State',
                data.disabled_at === null ? (
                  'may sign in'
                ) : (
                  <Group key="state" gap="xs">
                    <State tone="bad">disabled</State>
                    <Instant at={data.disabled_at} />
                  </Group>
                ),
              ],
              [
                'Roles',
                data.memberships.length === 0 ? (
                  'none'
                ) : (
                  <List key="roles" size="sm">
                    {data.memberships.map((one) => (
                      <List.Item key={`${one.tenant}/${one.project}`}>{roleOf(one, tenants)}</List.Item>
                    ))}
                  </List>
                ),
              ],
              ['Password', data.has_password ? 'is set' : 'none yet'],
              ['Second factor', data.has_second_factor ? 'on' : 'off'],
              ['Created', <Instant key="created" at={data.created_at} />],
              [
                'See',
                <Link key="see" to="/platform/audit" search={{ actor: data.id }}>
                  What this user changed
                </Link>,
              ],
            ]}
          />
        )}
      </Loaded>
    </Page>
  );
}

function Actions({ user, own }: { user: User; own: boolean }) {
  const [doing, setDoing] = useState<Doing | 'link' | null>(null);
  const close = (): void => setDoing(null);
  return (
    <>
      <Button variant="default" onClick={() => setDoing('link')} disabled={user.disabled_at !== null}>
        One-time link
      </Button>
      <Button variant="default" onClick={() => setDoing('revoke-sessions')}>
        End sessions
      </Button>
      {!own && (
        <Button
          variant="outline"
          color={user.disabled_at === null ? 'red' : undefined}
          onClick={() => setDoing(user.disabled_at === null ? 'disable' : 'enable')}
        >
          {user.disabled_at === null ? 'Disable' : 'Enable'}
        </Button>
      )}
      <SecretModal
        opened={doing !== null}
        onClose={close}
        title={doing === 'link' ? 'One-time link' : doing === null ? '' : DOINGS[doing].title}
      >
        {doing === 'link' && <NewLink user={user} done={close} />}
        {doing !== null && doing !== 'link' && <DoingForm user={user} doing={doing} done={close} />}
      </SecretModal>
    </>
  );
}

function DoingForm({ user, doing, done }: { user: User; doing: Doing; done: () => void }) {
  const [reason, setReason] = useState('');
  const queries = useQueryClient();
  const act = useMutation({
    mutationFn: () => api.POST(`${PATH}/${doing}`, { params: { path: { user: user.id } }, body: { reason } }),
    onSuccess: async () => {
      notifications.show({ message: DOINGS[doing].done });
      done();
      await queries.invalidateQueries({ queryKey: ['get', PATH] });
      await queries.invalidateQueries({ queryKey: ['get', '/admin/v1/users'] });
    },
  });
  return (
    <Form
      submit={() => act.mutate()}
      error={act.error}
      pending={act.isPending}
      action={DOINGS[doing].title}
      danger={doing === 'disable'}
    >
      <Text size="sm">{DOINGS[doing].what}</Text>
      <Reason value={reason} set={setReason} error={act.error} />
    </Form>
  );
}

function NewLink({ user, done }: { user: User; done: () => void }) {
  const [kind, setKind] = useState<'password_reset' | 'sign_in'>('password_reset');
  const [reason, setReason] = useState('');
  const make = useMutation({
    mutationFn: async () =>
      (await api.POST(`${PATH}/links`, { params: { path: { user: user.id } }, body: { kind, reason } })).data!,
  });
  useHeldOpen(make.isPending);
  if (make.data !== undefined) return <OneTimeLink link={make.data} whom={user.email} done={done} />;
  return (
    <Form submit={() => make.mutate()} error={make.error} pending={make.isPending} action="Make the link">
      <Text size="sm">Whoever has the link becomes this user. A second factor is asked for all the same.</Text>
      <NativeSelect
        label="For"
        data={[
          { value: 'password_reset', label: 'Setting another password' },
          { value: 'sign_in', label: 'Signing in once' },
        ]}
        value={kind}
        error={fieldError(make.error, 'kind')}
        onChange={(event) => setKind(event.currentTarget.value as typeof kind)}
      />
      <Reason value={reason} set={setReason} error={make.error} />
    </Form>
  );
}
