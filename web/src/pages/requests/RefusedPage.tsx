/** What a tenant's keys asked for and were refused before it ran, newest first: when, by which key, and in which words. */
import { Button, Group, Text, TextInput } from '@mantine/core';
import { getRouteApi, Link } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';

import { api, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Copied, Instant } from '~/components/values';
import { useKeyName } from '~/pages/usage/choices';

type Refused = Schema<'RefusedRequestObject'>;
export interface RefusedFilters {
  project?: string;
  key?: string;
}

const PATH = '/admin/v1/tenants/{tenant}/refused-requests';
const route = getRouteApi('/signed-in/tenants/$tenant/refused');
const FIELDS = [
  ['project', 'Project'],
  ['key', 'Key'],
] as const;

export function RefusedPage() {
  const { tenant } = route.useParams();
  const { project, key } = route.useSearch();
  const filters = { project, key };
  const navigate = route.useNavigate();
  const keyName = useKeyName(tenant);
  const filtered = filters.project !== undefined || filters.key !== undefined;
  return (
    <Page
      title="Refused requests"
      about="What keys asked for and did not get: it never ran and was billed nothing. At most the last 1 000 are kept, and of many a second some are left out."
    >
      <Filters key={JSON.stringify(filters)} filters={filters} apply={(search) => void navigate({ search })} />
      <PagedTable
        caption={`Refused requests of ${tenant}`}
        what="the refused requests"
        columns={columnsOf(tenant, keyName)}
        empty={filtered ? 'No refused request fits these filters.' : 'Nothing was refused, as far as it is kept.'}
        queryKey={['get', PATH, tenant, filters]}
        read={async (after, signal) => {
          const only = { project: listOf(filters.project), key: listOf(filters.key) };
          const params = { path: { tenant }, query: { ...only, after, limit: 50 } };
          return (await api.GET(PATH, { params, signal })).data!;
        }}
      />
    </Page>
  );
}

function Filters({ filters, apply }: { filters: RefusedFilters; apply: (filters: RefusedFilters) => void }) {
  const [draft, setDraft] = useState(filters);
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    apply({ project: draft.project?.trim() || undefined, key: draft.key?.trim() || undefined });
  };
  return (
    <form onSubmit={submit} role="search" aria-label="Filters">
      <Group gap="xs" align="flex-end">
        {FIELDS.map(([name, label]) => (
          <TextInput
            key={name}
            size="xs"
            label={label}
            value={draft[name] ?? ''}
            onChange={(event) => setDraft({ ...draft, [name]: event.currentTarget.value })}
          />
        ))}
        <Button size="xs" type="submit">
          Filter
        </Button>
        <Button size="xs" variant="default" onClick={() => apply({})}>
          Clear
        </Button>
      </Group>
    </form>
  );
}

function columnsOf(tenant: string, keyName: (id: string) => string): Column<Refused>[] {
  return [
    { header: 'Time', cell: (one) => <Instant at={one.at} /> },
    { header: 'Status', numeric: true, cell: (one) => one.status },
    {
      header: 'Why',
      cell: (one) => (
        <div className="wraps">
          <Text size="sm" fw={600} component="span">
            {one.code.replaceAll('_', ' ')}
          </Text>
          <Text size="sm">{one.message}</Text>
        </div>
      ),
    },
    { header: 'What', cell: (one) => one.route },
    { header: 'Project', cell: (one) => one.project ?? one.project_id ?? 'the tenant' },
    {
      header: 'Key',
      cell: (one) => (
        <Link to="/tenants/$tenant/keys/$key" params={{ tenant, key: one.key }}>
          {keyName(one.key)}
        </Link>
      ),
    },
    { header: 'Id', cell: (one) => <Copied text={one.id} label={`the id of the request of ${one.at}`} /> },
  ];
}

function listOf(value: string | undefined): string[] | undefined {
  return value === undefined ? undefined : [value];
}
