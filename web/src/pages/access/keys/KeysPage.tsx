/** The keys of a tenant and of its projects. */
import { Group, NativeSelect, Stack, Text, TextInput } from '@mantine/core';
import { getRouteApi, Link } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant, Money, State } from '~/components/values';

import { useProjects } from '../useProjects';
import { type Costs, useMonthCosts } from './cost';
import { isUnused, type Key, nameOf } from './fields';
import { NewKeyForm } from './NewKeyForm';
import { KEYS_PATH } from './path';

export const SHOWN = ['active', 'unused', 'all'] as const;
const SHOWN_LABELS = { active: 'Valid keys', unused: 'Not used for 30 days', all: 'All, revoked ones too' };
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/keys');

export function KeysPage() {
  const { tenant } = route.useParams();
  const { id } = tenantRoute.useLoaderData();
  const { project, show = 'active', find = '' } = route.useSearch();
  const navigate = route.useNavigate();
  const me = useMe();
  const projects = useProjects(tenant);
  const costs = useMonthCosts(tenant, may(me, 'usage.read', id));
  const [now] = useState(() => Date.now());
  const names = new Map(projects.map((one) => [one.id, one.name]));
  const set = (change: { project?: string; show?: (typeof SHOWN)[number]; find?: string }): void =>
    void navigate({ search: (now_) => ({ ...now_, ...change }), replace: true });
  const matches = (key: Key): boolean =>
    (show === 'all' || (show === 'active' ? key.state === 'active' : isUnused(key, now))) &&
    `${key.name} ${key.id}`.toLowerCase().includes(find.toLowerCase());
  return (
    <Page title="Keys" about="Keys of projects are for inference; keys without a project administer the tenant.">
      {may(me, 'keys.write', id) && <NewKeyForm tenant={tenant} tenantId={id} project={project} />}
      <Group align="flex-end">
        <TextInput
          type="search"
          label="Find"
          placeholder="Name or id"
          value={find}
          onChange={(event) => set({ find: event.currentTarget.value || undefined })}
        />
        <NativeSelect
          label="Of the project"
          data={[{ value: '', label: 'All' }, ...projects.map((one) => one.name)]}
          value={project ?? ''}
          onChange={(event) => set({ project: event.currentTarget.value || undefined })}
        />
        <NativeSelect
          label="Show"
          data={SHOWN.map((value) => ({ value, label: SHOWN_LABELS[value] }))}
          value={show}
          onChange={(event) => set({ show: event.currentTarget.value as (typeof SHOWN)[number] })}
        />
      </Group>
      <PagedTable
        caption={`Keys of ${tenant}`}
        what="the keys"
        columns={columns(tenant, names, costs, now)}
        shown={matches}
        empty={<Nothing filtered={find !== '' || show !== 'active' || project !== undefined} />}
        queryKey={['get', KEYS_PATH, tenant, project]}
        read={async (after, signal) => {
          const params = { path: { tenant }, query: { after, limit: 100, project } };
          return (await api.GET(KEYS_PATH, { params, signal })).data!;
        }}
      />
    </Page>
  );
}

function Nothing({ filtered }: { filtered: boolean }) {
  if (filtered) return <Text c="dimmed">No key is like that.</Text>;
  return (
    <Stack gap={4}>
      <Text c="dimmed">There are no valid keys. Create one above, or with the API:</Text>
      <Text size="sm" ff="monospace" className="wraps">
        curl -X POST …/admin/v1/tenants/NAME/keys -H &apos;authorization: Bearer ADMIN_KEY&apos; -d &apos;
        {'{"project": "default", "name": "search"}'}&apos;
      </Text>
    </Stack>
  );
}

function columns(tenant: string, projects: Map<string, string>, costs: Costs | undefined, now: number): Column<Key>[] {
  return [
    {
      header: 'Name',
      cell: (key) => (
        <Link to="/tenants/$tenant/keys/$key" params={{ tenant, key: key.id }} className="wraps">
          {nameOf(key)}
        </Link>
      ),
    },
    { header: 'State', cell: (key) => <KeyState apiKey={key} now={now} /> },
    {
      header: 'Of',
      cell: (key) => (key.project_id === null ? `the tenant, ${key.role}` : (projects.get(key.project_id) ?? '…')),
    },
    {
      header: 'Last used',
      cell: (key) => (key.last_used_at === null ? 'Never' : <Instant at={key.last_used_at} distance />),
    },
    {
      header: 'Cost this month',
      numeric: true,
      cell: (key) => (costs === undefined ? '–' : <Cost cost={costs.get(key.id)} />),
    },
    { header: 'Ends', cell: (key) => <Instant at={key.expires_at} distance /> },
    { header: 'Created', cell: (key) => <Instant at={key.created_at} distance /> },
  ];
}

export function Cost({ cost }: { cost: Record<string, string> | undefined }) {
  if (cost === undefined) return <>0</>;
  return Object.entries(cost).map(([currency, amount]) => (
    <div key={currency}>
      <Money amount={amount} currency={currency} places={2} />
    </div>
  ));
}

/** Whether a key is valid, unused, or has two secrets for a while. */
export function KeyState({ apiKey, now }: { apiKey: Key; now: number }) {
  if (apiKey.state !== 'active') return <State tone="bad">{apiKey.state}</State>;
  const overlap = apiKey.old_secret_until !== null && new Date(apiKey.old_secret_until).getTime() > now;
  return (
    <Stack gap={2} align="flex-start">
      {isUnused(apiKey, now) ? <State tone="waiting">not used for 30 d</State> : <State tone="good">active</State>}
      {overlap && (
        <Text size="xs">
          old secret ends <Instant at={apiKey.old_secret_until} distance />
        </Text>
      )}
    </Stack>
  );
}
