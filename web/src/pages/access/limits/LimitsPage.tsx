/** The rate limits of a tenant's projects and keys. */
import { Button, Group, Modal, NativeSelect, Text, TextInput } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi, Link } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { displayCount } from '~/money/decimal';
import { useKeyName } from '~/pages/usage/choices';

import { useProjects } from '../useProjects';
import { FIELDS, type Limits, LIMITS_KEY, type Subject } from './limits';
import { LimitsForm } from './LimitsForm';

const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/limits');

interface Editing {
  at: Subject;
  name: string;
  present: Limits | null;
}

export function LimitsPage() {
  const { tenant } = route.useParams();
  const { id } = tenantRoute.useLoaderData();
  const { project } = route.useSearch();
  const navigate = route.useNavigate();
  const me = useMe();
  const projects = useProjects(tenant);
  const keyName = useKeyName(tenant);
  const [editing, setEditing] = useState<Editing | null>(null);
  const limits = useQuery({
    queryKey: [LIMITS_KEY, 'of', id],
    queryFn: async ({ signal }) =>
      (await api.GET('/admin/v1/limits', { params: { query: { tenant_id: id } }, signal })).data!.data,
  });
  const mayChange = (projectId: string): boolean => may(me, 'limits.write', id, projectId);
  const columns: Column<Limits>[] = [
    {
      header: 'Project',
      cell: (one) => (
        <Link to="/tenants/$tenant/projects/$project" params={{ tenant, project: one.project }}>
          {one.project}
        </Link>
      ),
    },
    {
      header: 'Key',
      cell: (one) =>
        one.key === null ? (
          'all of its keys together'
        ) : (
          <Link to="/tenants/$tenant/keys/$key" params={{ tenant, key: one.key }}>
            {keyName(one.key)}
          </Link>
        ),
    },
    ...FIELDS.map(([name, label]) => ({
      header: label,
      numeric: true,
      cell: (one: Limits) => (one[name] === null ? '–' : displayCount(one[name])),
    })),
    {
      header: 'Action',
      cell: (one) =>
        mayChange(one.project_id) && (
          <Button
            size="compact-sm"
            variant="default"
            aria-label={`Change the limits of ${one.key === null ? one.project : keyName(one.key)}`}
            onClick={() => setEditing(editingOf(one, keyName))}
          >
            Change
          </Button>
        ),
    },
  ];
  const without = (found: Limits[]) =>
    projects.filter(
      (one) => mayChange(one.id) && !found.some((it) => it.scope === 'project' && it.project_id === one.id),
    );
  return (
    <Page
      title="Limits"
      about="A request must fit the limits of its key and of its project. Tokens read from the cache do not count."
    >
      <Loaded query={limits} what="the limits">
        {(found) => (
          <>
            <Group align="flex-end">
              <TextInput
                type="search"
                label="Of the project"
                placeholder="All"
                value={project ?? ''}
                onChange={(event) =>
                  void navigate({ search: { project: event.currentTarget.value || undefined }, replace: true })
                }
              />
              {without(found).length > 0 && (
                <SetFor
                  names={without(found).map((one) => one.name)}
                  choose={(name) => {
                    const chosen = projects.find((one) => one.name === name)!;
                    setEditing({ at: { scope: 'project', id: chosen.id }, name, present: null });
                  }}
                />
              )}
            </Group>
            <DataTable
              caption={`Limits of ${tenant}`}
              columns={columns}
              rows={found.filter((one) => one.project.includes(project ?? ''))}
              rowKey={(one) => one.key ?? one.project_id}
              empty="No limits are set: what runs at once is bounded by the fleet alone."
            />
            <Text size="sm" c="dimmed">
              Limits of a key are set on the page of the key.
            </Text>
          </>
        )}
      </Loaded>
      <Modal opened={editing !== null} onClose={() => setEditing(null)} title={`Limits of ${editing?.name ?? ''}`}>
        {editing !== null && <LimitsForm at={editing.at} present={editing.present} done={() => setEditing(null)} />}
      </Modal>
    </Page>
  );
}

function SetFor({ names, choose }: { names: string[]; choose: (name: string) => void }) {
  const [name, setName] = useState(names[0]!);
  const known = names.includes(name) ? name : names[0]!;
  return (
    <>
      <NativeSelect
        label="A project without limits"
        data={names}
        value={known}
        onChange={(event) => setName(event.currentTarget.value)}
      />
      <Button variant="default" onClick={() => choose(known)}>
        Set limits
      </Button>
    </>
  );
}

function editingOf(one: Limits, keyName: (id: string) => string): Editing {
  const at: Subject = one.key === null ? { scope: 'project', id: one.project_id } : { scope: 'key', id: one.key };
  return { at, name: one.key === null ? one.project : keyName(one.key), present: one };
}
