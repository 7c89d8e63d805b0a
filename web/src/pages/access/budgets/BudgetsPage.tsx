/** Budgets: how much a tenant, project, key or tag may use in a window, and how far it is. */
import { Button, Modal, Progress, Stack, Text } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Confirm } from '~/components/forms';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant, Money, State } from '~/components/values';
import { compareAmounts, shareOf } from '~/money/decimal';

import { useProjects } from '../useProjects';
import { BudgetForm } from './BudgetForm';
import { type Budget, forecast, passed } from './forecast';

export const BUDGETS_PATH = '/admin/v1/tenants/{tenant}/budgets';
const WINDOWS = { day: 'each day', month: 'each month', total: 'in all' };
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');

export function BudgetsPage() {
  const { tenant } = tenantRoute.useParams();
  const { id } = tenantRoute.useLoaderData();
  const me = useMe();
  const mayChange = may(me, 'budgets.write', id);
  const projects = useProjects(tenant);
  const [now] = useState(() => Date.now());
  const [editing, setEditing] = useState<Budget | 'new' | null>(null);
  const [removed, setRemoved] = useState<Budget | null>(null);
  const subjectOf = ({ scope, name }: Budget): string =>
    scope === 'tenant' ? 'the whole tenant' : `the ${scope} ${name}`;
  const columns: Column<Budget>[] = [
    {
      header: 'For',
      cell: (one) => (
        <Stack gap={0}>
          <span className="wraps">{subjectOf(one)}</span>
          <Text size="xs" c="dimmed">
            {WINDOWS[one.window]}
          </Text>
        </Stack>
      ),
    },
    { header: 'Used', cell: (one) => <Used budget={one} label={subjectOf(one)} /> },
    { header: 'Limit', numeric: true, cell: (one) => <Money amount={one.limit} currency={one.currency} /> },
    { header: 'Spent', numeric: true, cell: (one) => <Money amount={one.spent} places={2} /> },
    { header: 'Held', numeric: true, cell: (one) => <Money amount={one.held} places={2} /> },
    { header: 'At this pace', numeric: true, cell: (one) => <Forecast budget={one} now={now} /> },
    { header: 'Then', cell: (one) => (one.action === 'block' ? 'requests are refused' : 'a webhook is sent') },
    { header: 'Warns at', cell: (one) => one.thresholds.map((percent) => `${percent}\u00a0%`).join(', ') },
    { header: 'Begins anew', cell: (one) => <Instant at={one.resets_at} distance /> },
    ...(mayChange
      ? [
          {
            header: 'Actions',
            cell: (one: Budget) => (
              <Button.Group>
                <Button
                  size="compact-sm"
                  variant="default"
                  onClick={() => setEditing(one)}
                  aria-label={`Change the budget of ${subjectOf(one)}`}
                >
                  Change
                </Button>
                <Button
                  size="compact-sm"
                  variant="default"
                  onClick={() => setRemoved(one)}
                  aria-label={`Remove the budget of ${subjectOf(one)}`}
                >
                  Remove
                </Button>
              </Button.Group>
            ),
          },
        ]
      : []),
  ];
  return (
    <Page
      title="Budgets"
      about="What may be used in a day, a month or in all. A request is refused when a budget that blocks has no room for it."
      actions={mayChange && <Button onClick={() => setEditing('new')}>New budget</Button>}
    >
      <PagedTable
        caption={`Budgets of ${tenant}`}
        what="the budgets"
        columns={columns}
        empty="There are no budgets: what may be used is bounded by the balance alone."
        queryKey={['get', BUDGETS_PATH, tenant]}
        read={async (after, signal) => {
          const params = { path: { tenant }, query: { after, limit: 50 } };
          return (await api.GET(BUDGETS_PATH, { params, signal })).data!;
        }}
      />
      <Modal
        opened={editing !== null}
        onClose={() => setEditing(null)}
        title={editing === 'new' ? 'New budget' : 'Change the budget'}
      >
        {editing !== null && (
          <BudgetForm
            tenant={tenant}
            present={editing === 'new' ? null : editing}
            projects={projects}
            done={() => setEditing(null)}
          />
        )}
      </Modal>
      {removed !== null && (
        <Removal tenant={tenant} budget={removed} name={subjectOf(removed)} close={() => setRemoved(null)} />
      )}
    </Page>
  );
}

function Used({ budget, label }: { budget: Budget; label: string }) {
  const share = Math.min(1, shareOf(budget.spent, budget.limit));
  const { passed: warned } = passed(budget);
  const over = compareAmounts(budget.spent, budget.limit) >= 0;
  const tone = over ? 'bad' : warned.length > 0 ? 'waiting' : 'good';
  const word = over ? 'used up' : warned.length > 0 ? `over ${warned.at(-1)}\u00a0%` : 'within';
  return (
    <Stack gap={4} miw={110}>
      <State tone={tone}>{word}</State>
      <Progress.Root size="sm">
        <Progress.Section
          value={share * 100}
          color={over ? 'red.9' : warned.length > 0 ? 'yellow.9' : 'teal.9'}
          aria-label={`Used of the budget of ${label}`}
        />
      </Progress.Root>
    </Stack>
  );
}

function Forecast({ budget, now }: { budget: Budget; now: number }) {
  const amount = forecast(budget, now);
  if (amount === null) return <>–</>;
  return (
    <>
      <Money amount={amount} places={2} />
      {compareAmounts(amount, budget.limit) > 0 && (
        <Text size="xs" c="var(--mantine-color-error)">
          over the limit
        </Text>
      )}
    </>
  );
}

interface RemovalProps {
  tenant: string;
  budget: Budget;
  name: string;
  close: () => void;
}

function Removal({ tenant, budget, name, close }: RemovalProps) {
  const queries = useQueryClient();
  const [opened, { close: hide }] = useDisclosure(true);
  const remove = useMutation({
    mutationFn: () => api.DELETE(`${BUDGETS_PATH}/{budget}`, { params: { path: { tenant, budget: budget.id } } }),
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ['get', BUDGETS_PATH] });
      hide();
      close();
    },
  });
  return (
    <Confirm
      opened={opened}
      close={close}
      title="Remove the budget"
      action="Remove"
      pending={remove.isPending}
      error={remove.error}
      confirm={() => remove.mutate()}
    >
      The budget of {name} bounds nothing any more. A new one counts from then on.
    </Confirm>
  );
}
