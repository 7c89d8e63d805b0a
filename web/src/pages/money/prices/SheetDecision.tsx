/** Approving a draft of prices, and withdrawing it: by another person than its author. */
import { Button, Group, Stack, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, type Schema } from '~/api/client';
import { FormProblem } from '~/components/forms';

const AT = '/admin/v1/prices/sheets/{number}';

export function SheetDecision({ sheet }: { sheet: Schema<'SheetWithDifference'> }) {
  const me = useMe();
  const queries = useQueryClient();
  const [reason, setReason] = useState('');
  const decide = useMutation({
    mutationFn: async (what: 'activate' | 'withdraw') => {
      const params = { path: { number: sheet.id } };
      if (what === 'activate') return (await api.POST(`${AT}/activate`, { params, body: { reason } })).data!;
      return (await api.POST(`${AT}/withdraw`, { params, body: { reason } })).data!;
    },
    onSuccess: async (after) => {
      await queries.invalidateQueries({ predicate: ({ queryKey }) => /prices/.test(String(queryKey[1])) });
      notifications.show({ message: `The prices of ${after.model} are ${after.state}.` });
    },
  });
  const mayApprove = may(me, 'prices.approve') && sheet.state === 'draft';
  const mayWithdraw = may(me, 'prices.propose') && (sheet.state === 'draft' || sheet.state === 'scheduled');
  if (!mayApprove && !mayWithdraw) {
    if (sheet.state !== 'draft') return null;
    return <Text size="sm">It waits for an owner or finance of the platform other than {sheet.author}.</Text>;
  }
  return (
    <Stack gap="xs">
      <Group align="flex-end">
        <TextInput
          label="Reason (recorded)"
          value={reason}
          onChange={({ currentTarget: { value } }) => setReason(value)}
          aria-label={`Reason for sheet ${sheet.id}`}
        />
        {mayApprove && (
          <Button
            loading={decide.isPending && decide.variables === 'activate'}
            onClick={() => decide.mutate('activate')}
            aria-label={`Approve sheet ${sheet.id} of ${sheet.model}`}
          >
            Approve
          </Button>
        )}
        {mayWithdraw && (
          <Button
            variant="default"
            loading={decide.isPending && decide.variables === 'withdraw'}
            onClick={() => decide.mutate('withdraw')}
            aria-label={`Withdraw sheet ${sheet.id} of ${sheet.model}`}
          >
            Withdraw
          </Button>
        )}
      </Group>
      <FormProblem error={decide.error} fields={[]} />
    </Stack>
  );
}
