/** Who has a role at a scope, and who is invited: the same for the platform, a tenant and a project. */
import { Button, NativeSelect, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { useMe } from '~/access/rights';
import { api, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Confirm, fieldError, Form, FormProblem } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { SecretModal, useHeldOpen } from '~/components/SecretModal';
import { Instant, State } from '~/components/values';

import { OneTimeLink } from '../OneTimeLink';
import { type Role, rolesToGive } from '../roles';
import { Section } from '../Section';
import { invitationsPath, mayAt, membersPath, nameOfScope, type RoleScope } from './scope';

type Member = Schema<'MemberObject'>;
type Invitation = Schema<'InvitationObject'>;

export function Members({ scope }: { scope: RoleScope }) {
  const me = useMe();
  const mayChange = mayAt(me, 'members.write', scope);
  return (
    <>
      <MembersSection scope={scope} mayChange={mayChange} />
      <InvitationsSection scope={scope} mayChange={mayChange} />
    </>
  );
}

function MembersSection({ scope, mayChange }: { scope: RoleScope; mayChange: boolean }) {
  const me = useMe();
  const path = membersPath(scope);
  const members = useQuery({
    queryKey: ['members', path],
    queryFn: async ({ signal }) => (await api.GET(path, { signal })).data!.data,
  });
  const [changing, setChanging] = useState<Member | null>(null);
  const [removing, setRemoving] = useState<Member | null>(null);
  const columns: Column<Member>[] = [
    { header: 'Name', cell: (one) => <span className="wraps">{one.name || '–'}</span> },
    { header: 'E-mail address', cell: (one) => one.email },
    { header: 'Role', cell: (one) => one.role },
    {
      header: 'Second factor',
      cell: (one) => (
        <State tone={one.has_second_factor ? 'good' : 'waiting'}>{one.has_second_factor ? 'on' : 'off'}</State>
      ),
    },
    { header: 'State', cell: (one) => (one.disabled ? <State tone="bad">disabled</State> : 'may sign in') },
    { header: 'Since', cell: (one) => <Instant at={one.since} distance /> },
    {
      header: 'Actions',
      cell: (one) => (
        <Button.Group>
          {mayChange && one.user !== me.id && (
            <Button
              size="compact-sm"
              variant="default"
              onClick={() => setChanging(one)}
              aria-label={`Change the role of ${one.email}`}
            >
              Change role
            </Button>
          )}
          {(mayChange || one.user === me.id) && (
            <Button
              size="compact-sm"
              variant="default"
              onClick={() => setRemoving(one)}
              aria-label={one.user === me.id ? 'Leave' : `Remove ${one.email}`}
            >
              {one.user === me.id ? 'Leave' : 'Remove'}
            </Button>
          )}
        </Button.Group>
      ),
    },
  ];
  return (
    <Section title="Members">
      <Loaded query={members} what="the members">
        {(found) => (
          <DataTable
            caption={`Members of ${nameOfScope(scope)}`}
            columns={columns}
            rows={found}
            rowKey={(one) => one.user}
            empty={`Nobody has a role at ${nameOfScope(scope)} itself. Roles at what contains it hold here too.`}
          />
        )}
      </Loaded>
      <SecretModal opened={changing !== null} onClose={() => setChanging(null)} title="Change the role">
        {changing !== null && <RoleForm scope={scope} member={changing} done={() => setChanging(null)} />}
      </SecretModal>
      {removing !== null && (
        <Removal scope={scope} member={removing} own={removing.user === me.id} close={() => setRemoving(null)} />
      )}
    </Section>
  );
}

function RoleForm({ scope, member, done }: { scope: RoleScope; member: Member; done: () => void }) {
  const [role, setRole] = useState<Role>(member.role);
  const me = useMe();
  const queries = useQueryClient();
  const change = useMutation({
    mutationFn: () =>
      api.PUT(`${membersPath(scope)}/{user}`, { params: { path: { user: member.user } }, body: { role } }),
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ['members'] });
      done();
    },
  });
  return (
    <Form submit={() => change.mutate()} error={change.error} pending={change.isPending} action="Save">
      <NativeSelect
        label={`Role of ${member.email} at ${nameOfScope(scope)}`}
        description="It holds from the next request on."
        data={rolesToGive(me, scope.tenantId)}
        value={role}
        error={fieldError(change.error, 'role')}
        onChange={(event) => setRole(event.currentTarget.value as Role)}
      />
    </Form>
  );
}

interface RemovalProps {
  scope: RoleScope;
  member: Member;
  own: boolean;
  close: () => void;
}

function Removal({ scope, member, own, close }: RemovalProps) {
  const queries = useQueryClient();
  const remove = useMutation({
    mutationFn: () => api.DELETE(`${membersPath(scope)}/{user}`, { params: { path: { user: member.user } } }),
    onSuccess: async () => {
      if (own) await queries.invalidateQueries();
      else await queries.invalidateQueries({ queryKey: ['members'] });
      close();
    },
  });
  return (
    <Confirm
      opened
      close={close}
      title={own ? `Leave ${nameOfScope(scope)}` : `Remove ${member.email}`}
      action={own ? 'Leave' : 'Remove'}
      pending={remove.isPending}
      error={remove.error}
      confirm={() => remove.mutate()}
    >
      {own ? 'You lose' : `${member.name || member.email} loses`} the role {member.role} at {nameOfScope(scope)}, from
      the next request on.
    </Confirm>
  );
}

function InvitationsSection({ scope, mayChange }: { scope: RoleScope; mayChange: boolean }) {
  const path = invitationsPath(scope);
  const queries = useQueryClient();
  const [inviting, setInviting] = useState(false);
  const invitations = useQuery({
    queryKey: ['invitations', path],
    queryFn: async ({ signal }) => (await api.GET(path, { signal })).data!.data,
  });
  const withdraw = useMutation({
    mutationFn: (invitation: string) => api.DELETE(`${path}/{invitation}`, { params: { path: { invitation } } }),
    onSuccess: async () => {
      notifications.show({ message: 'The invitation is void.' });
      await queries.invalidateQueries({ queryKey: ['invitations'] });
    },
  });
  const columns: Column<Invitation>[] = [
    { header: 'E-mail address', cell: (one) => one.email },
    { header: 'Role', cell: (one) => one.role },
    { header: 'Invited', cell: (one) => <Instant at={one.created_at} distance /> },
    { header: 'Ends', cell: (one) => <Instant at={one.expires_at} distance /> },
    {
      header: 'Action',
      cell: (one) =>
        mayChange && (
          <Button
            size="compact-sm"
            variant="default"
            onClick={() => withdraw.mutate(one.id)}
            aria-label={`Withdraw the invitation of ${one.email}`}
          >
            Withdraw
          </Button>
        ),
    },
  ];
  return (
    <Section title="Invitations" actions={mayChange && <Button onClick={() => setInviting(true)}>Invite</Button>}>
      <FormProblem error={withdraw.error} />
      <Loaded query={invitations} what="the invitations" height={60}>
        {(found) => (
          <DataTable
            caption={`Invitations to ${nameOfScope(scope)}`}
            columns={columns}
            rows={found}
            rowKey={(one) => one.id}
            empty="Nobody is invited. An invitation is a link that is good for 7 days; one that has ended is not listed."
          />
        )}
      </Loaded>
      <SecretModal opened={inviting} onClose={() => setInviting(false)} title={`Invite to ${nameOfScope(scope)}`}>
        <Invite scope={scope} done={() => setInviting(false)} />
      </SecretModal>
    </Section>
  );
}

function Invite({ scope, done }: { scope: RoleScope; done: () => void }) {
  const me = useMe();
  const roles = rolesToGive(me, scope.tenantId);
  const [email, setEmail] = useState('');
  const [role, setRole] = useState<Role>('developer');
  const queries = useQueryClient();
  const invite = useMutation({
    mutationFn: async () => (await api.POST(invitationsPath(scope), { body: { email, role } })).data!,
    onSuccess: () => queries.invalidateQueries({ queryKey: ['invitations'] }),
  });
  useHeldOpen(invite.isPending);
  if (invite.data !== undefined) return <OneTimeLink link={invite.data} whom={email} done={done} />;
  return (
    <Form submit={() => invite.mutate()} error={invite.error} pending={invite.isPending} action="Make the link">
      <TextInput
        label="E-mail address"
        type="email"
        required
        data-autofocus
        autoComplete="off"
        value={email}
        error={fieldError(invite.error, 'email')}
        onChange={(event) => setEmail(event.currentTarget.value)}
      />
      <NativeSelect
        label="Role"
        data={roles}
        value={role}
        error={fieldError(invite.error, 'role')}
        onChange={(event) => setRole(event.currentTarget.value as Role)}
      />
    </Form>
  );
}
