/** Approving a draft of prices, and withdrawing it: by another person than its author, in a dialog with what it changes. */
import { Button, Group, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, type Schema } from '~/api/client';
import { DecisionDialog } from '~/components/DecisionDialog';

import { DifferenceTable } from './PriceGrid';

const AT = '/admin/v1/prices/sheets/{number}';

export function SheetDecision({ sheet }: { sheet: Schema<'SheetWithDifference'> }) {
  const me = useMe();
  const queries = useQueryClient();
  const [decision, setDecision] = useState<'activate' | 'withdraw' | null>(null);
  const decide = useMutation({
    mutationFn: async (reason: string) => {
      const params = { path: { number: sheet.id } };
      if (decision === 'activate') return (await api.POST(`${AT}/activate`, { params, body: { reason } })).data!;
      return (await api.POST(`${AT}/withdraw`, { params, body: { reason } })).data!;
    },
    onSuccess: async (after) => {
      await queries.invalidateQueries({ predicate: ({ queryKey }) => /prices|approvals/.test(String(queryKey[1])) });
      notifications.show({ message: `The prices of ${after.model} are ${after.state}.` });
      setDecision(null);
    },
  });
  const mayApprove = may(me, 'prices.approve') && sheet.state === 'draft';
  const mayWithdraw = may(me, 'prices.propose') && (sheet.state === 'draft' || sheet.state === 'scheduled');
  if (!mayApprove && !mayWithdraw) {
    if (sheet.state !== 'draft') return null;
    return <Text size="sm">It waits for an owner or finance of the platform other than {sheet.author}.</Text>;
  }
  const approves = decision === 'activate';
  const name = `sheet ${sheet.id} of ${sheet.model}`;
  return (
    <Group gap="xs">
      {mayApprove && (
        <Button onClick={() => setDecision('activate')} aria-label={`Approve …: ${name}`}>
          Approve …
        </Button>
      )}
      {mayWithdraw && (
        <Button variant="default" onClick={() => setDecision('withdraw')} aria-label={`Withdraw …: ${name}`}>
          Withdraw …
        </Button>
      )}
      <DecisionDialog
        opened={decision !== null}
        close={() => setDecision(null)}
        title={`${approves ? 'Approve' : 'Withdraw'}: prices of ${sheet.model}, book ${sheet.book}`}
        action={approves ? 'Approve' : 'Withdraw'}
        ends={!approves}
        pending={decide.isPending}
        error={decide.error}
        decide={decide.mutate}
      >
        <DifferenceTable caption={`What sheet ${sheet.id} changes, in ${sheet.currency}`} rows={sheet.difference} />
      </DecisionDialog>
    </Group>
  );
}
