/**
 * Chooses the tenant whose pages are shown. The choice is in the path; the last one is kept for pages without one. Of
 * more than a hundred tenants the first are listed, and any other is reached by typing its name.
 */
import { Select, Skeleton, Text } from '@mantine/core';
import { useLocalStorage } from '@mantine/hooks';
import { useNavigate, useParams, useRouterState } from '@tanstack/react-router';
import { useEffect, useState } from 'react';

import { query, type Schema } from '~/api/client';

const MOST = 100;
const LAST = 'turnpike.tenant';

export type Tenant = Schema<'TenantObject'>;

/** The tenants that the user may see, by name. */
export const tenantsOptions = query.queryOptions('get', '/admin/v1/tenants', { params: { query: { limit: MOST } } });

/** The tenants that the user may see. Nothing until they are read. */
export function useTenants(): Tenant[] | undefined {
  return query.useQuery('get', '/admin/v1/tenants', { params: { query: { limit: MOST } } }).data?.data;
}

/** The tenant of the path; on pages without one the last that was chosen, or the first. */
export function useChosenTenant(): Tenant | undefined {
  const tenants = useTenants();
  const { tenant } = useParams({ strict: false });
  const [last, setLast] = useLocalStorage({ key: LAST });
  const listed = tenants?.find((one) => one.name === tenant || one.id === tenant);
  const other = query.useQuery(
    'get',
    '/admin/v1/tenants/{tenant}',
    { params: { path: { tenant: tenant ?? '' } } },
    { enabled: tenant !== undefined && tenants !== undefined && listed === undefined, staleTime: 60_000 },
  );
  const named = listed ?? (tenant === undefined ? undefined : other.data);
  useEffect(() => {
    if (named !== undefined) setLast(named.name);
  }, [named, setLast]);
  return named ?? tenants?.find((one) => one.name === last) ?? tenants?.[0];
}

export function TenantSwitcher() {
  const { data, error } = query.useQuery('get', '/admin/v1/tenants', { params: { query: { limit: MOST } } });
  const chosen = useChosenTenant();
  const navigate = useNavigate();
  const path = useRouterState({ select: (state) => state.matches.at(-1)?.fullPath ?? '' });
  const [typed, setTyped] = useState('');
  if (data === undefined) return error === null ? <Skeleton w={180} h={30} /> : null;
  if (chosen === undefined) return <Text size="sm">No tenant yet</Text>;
  const go = (tenant: string | null): void => {
    if (tenant === null || tenant === '') return;
    const page = /^\/tenants\/\$tenant\/[a-z-]+/.exec(path)?.[0] ?? '/tenants/$tenant/overview';
    void navigate({ to: page.replace('$tenant', encodeURIComponent(tenant)) });
  };
  const tenants = data.data.some((one) => one.id === chosen.id) ? data.data : [chosen, ...data.data];
  return (
    <Select
      aria-label="Tenant"
      size="xs"
      w={180}
      data={tenants.map((one) => ({
        value: one.name,
        label: one.suspended_at === null ? one.name : `${one.name} (suspended)`,
      }))}
      value={chosen.name}
      onChange={go}
      searchable={tenants.length > 7}
      onSearchChange={setTyped}
      onKeyDown={(event) => {
        const known = tenants.some((one) => one.name.includes(typed));
        if (event.key === 'Enter' && data.has_more && !known) go(typed);
      }}
      nothingFoundMessage={data.has_more ? 'Enter opens the tenant of this name' : 'There is none of this name'}
      allowDeselect={false}
      comboboxProps={{ keepMounted: false }}
    />
  );
}
