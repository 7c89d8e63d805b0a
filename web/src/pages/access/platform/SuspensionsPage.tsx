/** Tenants and projects that are suspended, and suspending a tenant. */
import { Group, NativeSelect } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { query, type Schema } from '~/api/client';
import { type Tenant, useTenants } from '~/app/TenantSwitcher';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Instant } from '~/components/values';

import { Suspension } from '../projects/suspension';
import { useProjects } from '../useProjects';

type Suspended = Schema<'SuspensionObject'>;

export function SuspensionsPage() {
  const suspensions = query.useQuery('get', '/admin/v1/suspensions');
  const tenants = useTenants() ?? [];
  const mayChange = may(useMe(), 'tenants.write');
  const name = (one: Suspended): string => tenants.find(({ id }) => id === one.tenant_id)?.name ?? one.tenant_id;
  const columns: Column<Suspended>[] = [
    { header: 'Tenant', cell: (one) => <span className="wraps">{name(one)}</span> },
    {
      header: 'Project',
      cell: (one) =>
        one.project_id === null ? (
          'all of it'
        ) : (
          <Link
            to="/tenants/$tenant/projects/$project"
            params={{ tenant: name(one), project: one.project_id }}
            className="wraps"
          >
            <ProjectName tenant={name(one)} id={one.project_id} />
          </Link>
        ),
    },
    { header: 'Since', cell: (one) => <Instant at={one.suspended_at} /> },
    { header: 'What ran', cell: (one) => (one.running === 'end' ? 'was ended' : 'may finish') },
    { header: 'Why', cell: (one) => <span className="wraps">{one.reason || '–'}</span> },
  ];
  return (
    <Page title="Suspensions" about="Requests of what is suspended are refused at every gateway.">
      {mayChange && tenants.length > 0 && <OfTenant tenants={tenants} />}
      <Loaded query={suspensions} what="what is suspended">
        {({ data }) => (
          <DataTable
            caption="What is suspended"
            columns={columns}
            rows={data}
            rowKey={(one) => one.project_id ?? one.tenant_id}
            empty="Nothing is suspended. A project is suspended on its page."
          />
        )}
      </Loaded>
    </Page>
  );
}

function ProjectName({ tenant, id }: { tenant: string; id: string }) {
  return <>{useProjects(tenant).find((project) => project.id === id)?.name ?? id}</>;
}

function OfTenant({ tenants }: { tenants: Tenant[] }) {
  const [chosen, setChosen] = useState(tenants[0]!.name);
  const tenant = tenants.find((one) => one.name === chosen) ?? tenants[0]!;
  return (
    <Group align="flex-end">
      <NativeSelect
        label="Tenant"
        data={tenants.map((one) => one.name)}
        value={tenant.name}
        onChange={(event) => setChosen(event.currentTarget.value)}
      />
      <Suspension tenant={tenant.name} suspendedAt={tenant.suspended_at} mayChange />
    </Group>
  );
}
