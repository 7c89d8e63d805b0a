/** What waits for a second person, each change with what it changes; and what became of earlier ones. */
import { Alert, Button, Group, Modal, NativeSelect, Paper, Stack, Text, Title } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';

import { type Me, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import { useTenants } from '~/app/TenantSwitcher';
import { FormProblem } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Instant, State } from '~/components/values';

import { shortest } from '../audit/difference';
import { Reason } from '../Reason';
import { ChangeDifference } from './ChangeDifference';

type Change = Schema<'PendingChangeObject'>;

const PATH = '/admin/v1/approvals';
const MOST = 50;
export const STATES = ['pending', 'approved', 'withdrawn'] as const;
const STATE_LABELS = { pending: 'What waits', approved: 'Approved', withdrawn: 'Withdrawn' };
const route = getRouteApi('/signed-in/platform/approvals');

export function ApprovalsPage() {
  const { state = 'pending', change } = route.useSearch();
  const navigate = route.useNavigate();
  const found = query.useQuery('get', PATH, { params: { query: { state, limit: MOST } } });
  return (
    <Page title="Approvals" about="Changes that take two people. Nobody approves their own.">
      <Group>
        <NativeSelect
          label="Show"
          data={STATES.map((value) => ({ value, label: STATE_LABELS[value] }))}
          value={state}
          onChange={(event) =>
            void navigate({ search: { state: event.currentTarget.value as (typeof STATES)[number] }, replace: true })
          }
        />
      </Group>
      <Loaded query={found} what="the changes">
        {({ data, has_more }) => (
          <Stack>
            {data.length === 0 && (
              <Text c="dimmed">{state === 'pending' ? 'Nothing waits for approval.' : 'There are none.'}</Text>
            )}
            {data
              .filter((one) => change === undefined || one.id === change)
              .map((one) => (
                <ChangeCard key={one.id} change={one} />
              ))}
            {change !== undefined && data.some((one) => one.id !== change) && (
              <Button variant="subtle" onClick={() => void navigate({ search: { state } })}>
                Show all
              </Button>
            )}
            {has_more && <Text size="sm">The newest {MOST} are shown.</Text>}
          </Stack>
        )}
      </Loaded>
    </Page>
  );
}

function ChangeCard({ change }: { change: Change }) {
  const me = useMe();
  const queries = useQueryClient();
  const [withdrawing, setWithdrawing] = useState(false);
  const tenant = useTenants()?.find((one) => one.id === change.tenant_id)?.name ?? change.tenant_id;
  const params = { path: { change: change.id } };
  const refresh = () => queries.invalidateQueries({ queryKey: ['get'] });
  const approve = useMutation({
    mutationFn: () => api.POST(`${PATH}/{change}/approve`, { params, body: { reason: '', dry_run: false } }),
    onSuccess: async () => {
      notifications.show({ message: `Approved: ${withShortAmounts(change.summary)}.` });
      await refresh();
    },
  });
  const approves = mayApprove(me, change);
  return (
    <Paper component="article" withBorder p="md" aria-label={withShortAmounts(change.summary)}>
      <Stack gap="sm">
        <Group justify="space-between" align="flex-start">
          <Title order={2} className="wraps">
            {withShortAmounts(change.summary)}
          </Title>
          <ChangeState state={change.state} />
        </Group>
        <Text size="sm" className="wraps">
          {change.kind}
          {tenant !== null && ` of ${tenant}`}, proposed <Instant at={change.created_at} distance /> by {change.author}{' '}
          ({change.author_via}){change.reason && `: ${change.reason}`}
        </Text>
        <ChangeDifference change={change} />
        {change.decider !== null && (
          <Text size="sm" className="wraps">
            {change.state} <Instant at={change.decided_at} distance /> by {change.decider} ({change.decider_via})
            {change.decision_reason && `: ${change.decision_reason}`}
            {change.result !== null && `. It made ${change.result}.`}
          </Text>
        )}
        {change.state === 'pending' && (
          <>
            {change.own && (
              <Alert color="yellow.9" variant="outline" role="note">
                {change.author === me.email
                  ? 'You proposed this'
                  : `You may have proposed this, since the key of ${change.author} names no user`}
                , so another person must approve it: an operator who is {orOf(change.approver_roles)}.
              </Alert>
            )}
            {!change.own && !approves && (
              <Text size="sm">Who may approve it: an operator who is {orOf(change.approver_roles)}.</Text>
            )}
            <FormProblem error={approve.error} fields={[]} />
            <Group>
              {approves && !change.own && (
                <Button loading={approve.isPending} onClick={() => approve.mutate()}>
                  Approve
                </Button>
              )}
              {(change.own || approves) && (
                <Button variant="default" onClick={() => setWithdrawing(true)}>
                  {change.own ? 'Withdraw' : 'Refuse'}
                </Button>
              )}
            </Group>
          </>
        )}
      </Stack>
      <Modal
        opened={withdrawing}
        onClose={() => setWithdrawing(false)}
        title={change.own ? 'Withdraw the change' : 'Refuse the change'}
      >
        <Withdrawal change={change} done={() => setWithdrawing(false)} />
      </Modal>
    </Paper>
  );
}

const CHANGE_STATES = {
  pending: ['waiting', 'waits'],
  approved: ['good', 'approved'],
  withdrawn: ['neutral', 'withdrawn'],
} as const;

function ChangeState({ state }: { state: Change['state'] }) {
  const [tone, word] = CHANGE_STATES[state];
  return <State tone={tone}>{word}</State>;
}

function Withdrawal({ change, done }: { change: Change; done: () => void }) {
  const [reason, setReason] = useState('');
  const queries = useQueryClient();
  const withdraw = useMutation({
    mutationFn: () =>
      api.POST(`${PATH}/{change}/withdraw`, { params: { path: { change: change.id } }, body: { reason } }),
    onSuccess: async () => {
      done();
      await queries.invalidateQueries({ queryKey: ['get'] });
    },
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    withdraw.mutate();
  };
  return (
    <form onSubmit={submit}>
      <Stack>
        <Text size="sm">It is not made, and does not wait any more.</Text>
        <Reason value={reason} set={setReason} error={withdraw.error} />
        <FormProblem error={withdraw.error} fields={['reason']} />
        <Group justify="flex-end">
          <Button type="submit" loading={withdraw.isPending}>
            {change.own ? 'Withdraw' : 'Refuse'}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

/** Whether a user has one of the roles at the platform that approve a change. */
function mayApprove(me: Me, change: Change): boolean {
  return me.memberships.some((one) => one.tenant === null && change.approver_roles.includes(one.role));
}

function orOf(words: readonly string[]): string {
  return words.join(' or ');
}

/** A sentence with its amounts, which have all twelve places, as people write them. */
function withShortAmounts(text: string): string {
  return text.replace(/-?\d+\.\d{12}(?!\d)/g, shortest);
}
