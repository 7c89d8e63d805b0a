/** All tenants: how each stands, and making one. */
import { Button, Modal, Text, TextInput } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { useQueryClient } from '@tanstack/react-query';
import { Link, useNavigate } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Amounts } from '~/components/Facts';
import { fieldError, Form } from '~/components/forms';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant, Money, State } from '~/components/values';
import { addAmounts, parseAmount } from '~/money/decimal';

/** A tenant, and what its usage costs this month by currency; none where that may not be seen. */
type Row = Schema<'TenantObject'> & { cost: Record<string, string> | null };

const PATH = '/admin/v1/tenants';
const PAGE = 100;

const columns: Column<Row>[] = [
  {
    header: 'Name',
    cell: (tenant) => (
      <Link to="/tenants/$tenant/overview" params={{ tenant: tenant.name }} className="wraps">
        {tenant.name}
      </Link>
    ),
    sort: (tenant) => tenant.name,
  },
  {
    header: 'State',
    cell: (tenant) =>
      tenant.suspended_at === null ? <State tone="good">active</State> : <State tone="bad">suspended</State>,
    sort: (tenant) => (tenant.suspended_at === null ? 'active' : 'suspended'),
  },
  {
    header: 'Currency',
    cell: (tenant) => tenant.balance?.currency ?? '–',
    sort: (tenant) => tenant.balance?.currency ?? null,
  },
  {
    header: 'Available',
    numeric: true,
    cell: ({ balance }) =>
      balance ? <Money amount={balance.available} currency={balance.currency} places={2} /> : '–',
    sort: ({ balance }) => (balance ? parseAmount(balance.available) : null),
  },
  {
    header: 'Spend this month',
    numeric: true,
    cell: ({ cost }) => (
      <Amounts
        amounts={cost ?? {}}
        show={(amount, currency) => <Money amount={amount} currency={currency} places={2} />}
      />
    ),
    sort: ({ cost }) => (cost === null ? null : parseAmount(addAmounts(Object.values(cost)))),
  },
  {
    header: 'Created',
    cell: (tenant) => <Instant at={tenant.created_at} distance />,
    sort: (tenant) => tenant.created_at,
  },
];

export function TenantsPage() {
  const me = useMe();
  const withCosts = may(me, 'usage.read');
  return (
    <Page
      title="Tenants"
      about="Customers: each with money, projects and people of its own."
      actions={may(me, 'tenants.write') && <NewTenant />}
    >
      <PagedTable
        caption="Tenants"
        what="the tenants"
        columns={columns}
        empty="There are no tenants yet."
        queryKey={['get', PATH, 'with money', withCosts]}
        read={(after, signal) => readTenants(after, signal, withCosts)}
      />
    </Page>
  );
}

/** A page of tenants with their money. */
async function readTenants(after: string | undefined, signal: AbortSignal, withCosts: boolean) {
  const page = { after, limit: PAGE };
  const [tenants, usage] = await Promise.all([
    api.GET(PATH, { params: { query: { ...page, expand: 'balance' } }, signal }),
    withCosts ? api.GET('/admin/v1/usage', { params: { query: page }, signal }) : undefined,
  ]);
  const costs = new Map(usage?.data?.data.map((one) => [one.tenant_id, sumOf(one.results.map(({ cost }) => cost))]));
  const { data, has_more } = tenants.data!;
  return { data: data.map((tenant): Row => ({ ...tenant, cost: costs.get(tenant.id) ?? null })), has_more };
}

/** Amounts by currency, added up in each. */
function sumOf(costs: Record<string, string>[]): Record<string, string> {
  const sums: Record<string, string> = {};
  for (const [currency, amount] of costs.flatMap(Object.entries<string>)) {
    sums[currency] = addAmounts([sums[currency] ?? '0', amount]);
  }
  return sums;
}

function NewTenant() {
  const [opened, { open, close }] = useDisclosure();
  const [name, setName] = useState('');
  const queries = useQueryClient();
  const navigate = useNavigate();
  const create = query.useMutation('post', PATH, {
    onSuccess: async (tenant) => {
      await queries.invalidateQueries({ queryKey: ['get', PATH] });
      notifications.show({ message: `The tenant ${tenant.name} was created.` });
      await navigate({ to: '/tenants/$tenant/overview', params: { tenant: tenant.name } });
    },
  });
  return (
    <>
      <Button onClick={open}>New tenant</Button>
      <Modal opened={opened} onClose={close} title="New tenant">
        <Form
          submit={() => create.mutate({ body: { name } })}
          error={create.error}
          pending={create.isPending}
          action="Create"
          cancel={close}
        >
          <Text size="sm">
            It gets a project “default”, and no money: its first requests need a grant or a credit line, whose currency
            becomes the tenant&apos;s.
          </Text>
          <TextInput
            label="Name"
            required
            data-autofocus
            value={name}
            error={fieldError(create.error, 'name')}
            onChange={(event) => setName(event.currentTarget.value)}
          />
        </Form>
      </Modal>
    </>
  );
}
