/** Deciding about a change that waits: who may, and the dialog with what it changes in which it is done. */
import { Alert, Button, Group, Skeleton, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { lazy, Suspense, useState } from 'react';

import { type Me, useMe } from '~/access/rights';
import { api, query } from '~/api/client';
import { useTenants } from '~/app/TenantSwitcher';
import { DecisionDialog } from '~/components/DecisionDialog';

import { type Change, titleOf } from './words';

/** With tables of prices and terms: loaded when a dialog is opened first, since buttons stand on the overview. */
const WhatChanges = lazy(() => import('./WhatChanges').then((module) => ({ default: module.WhatChanges })));
const ONE = '/admin/v1/approvals/{change}';
type Decision = 'approve' | 'withdraw';

/** Whether a user may approve a change, or refuse it: a second person, with a role that may. */
export function mayDecide(me: Me, change: Change): boolean {
  const mayApprove = me.memberships.some((one) => one.tenant === null && change.approver_roles.includes(one.role));
  return change.state === 'pending' && !change.own && mayApprove;
}

/** The name of the tenant that a change is for; its id until the name is read, and nothing for none. */
export function useTenantName(id: string | null): string {
  const listed = useTenants()?.find((one) => one.id === id);
  const path = '/admin/v1/tenants/{tenant}';
  const asked = { enabled: id !== null && listed === undefined, staleTime: 60_000 };
  const other = query.useQuery('get', path, { params: { path: { tenant: id ?? '' } } }, asked);
  return listed?.name ?? other.data?.name ?? id ?? '';
}

/** The buttons with which a change is approved, refused or withdrawn; who may not is told who may. `compact`: approved alone. */
export function Decisions({ change, compact = false }: { change: Change; compact?: boolean }) {
  const me = useMe();
  const [decision, setDecision] = useState<Decision | null>(null);
  const tenant = useTenantName(change.tenant_id);
  const title = titleOf(change, tenant);
  const decides = mayDecide(me, change);
  const who = change.approver_roles.join(' or ');
  if (change.state !== 'pending') return null;
  return (
    <>
      {change.own && (
        <Alert color="yellow.9" variant="outline" role="note">
          {change.author === me.email
            ? 'You proposed this'
            : `You may have proposed this, since the key of ${change.author} names no user`}
          , so another person must approve it: an operator who is {who}.
        </Alert>
      )}
      {!change.own && !decides && <Text size="sm">Who may approve it: an operator who is {who}.</Text>}
      {(decides || change.own) && (
        <Group gap="xs">
          {decides && (
            <Button
              size={compact ? 'xs' : undefined}
              aria-label={`Approve …: ${title}`}
              onClick={() => setDecision('approve')}
            >
              Approve …
            </Button>
          )}
          {!compact && (
            <Button
              variant="default"
              aria-label={`${change.own ? 'Withdraw' : 'Refuse'} …: ${title}`}
              onClick={() => setDecision('withdraw')}
            >
              {change.own ? 'Withdraw …' : 'Refuse …'}
            </Button>
          )}
        </Group>
      )}
      <ChangeDialog change={change} title={title} tenant={tenant} decision={decision} close={() => setDecision(null)} />
    </>
  );
}

interface ChangeDialogProps {
  change: Change;
  title: string;
  tenant: string;
  decision: Decision | null;
  close: () => void;
}

function ChangeDialog({ change, title, tenant, decision, close }: ChangeDialogProps) {
  const queries = useQueryClient();
  const decide = useMutation({
    mutationFn: async (reason: string) => {
      const params = { path: { change: change.id } };
      if (decision === 'approve') await api.POST(`${ONE}/approve`, { params, body: { reason, dry_run: false } });
      else await api.POST(`${ONE}/withdraw`, { params, body: { reason } });
    },
    onSuccess: async () => {
      notifications.show({ message: `${decision === 'approve' ? 'Approved' : past}: ${title}.` });
      await queries.invalidateQueries({ queryKey: ['get'] });
      close();
    },
  });
  const word = change.own ? 'Withdraw' : 'Refuse';
  const past = change.own ? 'Withdrawn' : 'Refused';
  const approves = decision === 'approve';
  return (
    <DecisionDialog
      opened={decision !== null}
      close={close}
      title={`${approves ? 'Approve' : word}: ${title}`}
      action={approves ? 'Approve' : word}
      ends={!approves}
      pending={decide.isPending}
      error={decide.error}
      decide={decide.mutate}
    >
      <Text size="sm">
        Proposed by {change.author}
        {change.reason && `: ${change.reason}`}.{' '}
        {approves ? 'Once it is approved it is made as follows.' : 'It is not made, and does not wait any more.'}
      </Text>
      <Suspense fallback={<Skeleton height={160} />}>
        <WhatChanges change={change} tenant={tenant} impact={approves} />
      </Suspense>
    </DecisionDialog>
  );
}
