/** What a filter picks from: projects, models and keys, by their names. */
import { Select } from '@mantine/core';
import { useState } from 'react';

import { query } from '~/api/client';
import type { UsageFilters } from '~/app/search';
import { useProjects } from '~/pages/access/useProjects';

import { spanOf } from './search';
import type { Series } from './series';

export interface ChoiceProps {
  value: string | undefined;
  set: (value: string | null) => void;
}

/** A project of the tenant. */
export function Projects({ tenant, value, set }: ChoiceProps & { tenant: string }) {
  const data = useProjects(tenant).map((project) => ({ value: project.name, label: project.name }));
  if (value !== undefined && !data.some((one) => one.value === value)) data.push({ value, label: value });
  return (
    <Select
      label="Project"
      w={160}
      placeholder="All"
      clearable
      searchable
      data={data}
      value={value ?? null}
      onChange={set}
    />
  );
}

interface ModelsProps extends ChoiceProps {
  /** None over all tenants. */
  tenant: string | undefined;
  filters: UsageFilters;
}

/** A model that there was usage of in the span. */
export function Models({ tenant, filters, value, set }: ModelsProps) {
  const asked = { ...spanOf(filters), group_by: ['model' as const], top: 50, bucket: 'month' as const };
  const own = query.useQuery(
    'get',
    '/admin/v1/tenants/{tenant}/usage/series',
    { params: { path: { tenant: tenant ?? '' }, query: asked } },
    { enabled: tenant !== undefined, refetchInterval: false },
  );
  const all = query.useQuery(
    'get',
    '/admin/v1/usage/series',
    { params: { query: asked } },
    { enabled: tenant === undefined, refetchInterval: false },
  );
  const series = (tenant === undefined ? all.data : own.data) as Series | undefined;
  const names = new Set((series?.lines ?? []).flatMap((line) => (line.model === undefined ? [] : [line.model])));
  if (value !== undefined) names.add(value);
  return (
    <Select
      label="Model"
      w={180}
      placeholder="All"
      clearable
      searchable
      data={[...names].sort()}
      value={value ?? null}
      onChange={set}
    />
  );
}

/** The keys of a tenant, of more than a hundred the first. */
function useKeys(tenant: string) {
  const params = { path: { tenant }, query: { limit: 100 } };
  return query.useQuery('get', '/admin/v1/tenants/{tenant}/keys', { params }, { staleTime: 60_000 }).data?.data ?? [];
}

/** What people call a key; its id where that is not known. */
export function useKeyName(tenant: string): (id: string) => string {
  const names = new Map(useKeys(tenant).map((key) => [key.id, key.name]));
  return (id) => names.get(id) || id;
}

/** A key of the tenant by its name. Of more than a hundred the first are listed; any other is typed by its id. */
export function Keys({ tenant, value, set }: ChoiceProps & { tenant: string }) {
  const keys = useKeys(tenant);
  const [typed, setTyped] = useState('');
  const data = keys.map((key) => ({ value: key.id, label: key.name || key.id }));
  for (const other of [value, typed.trim()]) {
    if (other?.startsWith('tp_') && !data.some((one) => one.value === other)) data.push({ value: other, label: other });
  }
  return (
    <Select
      label="Key"
      w={180}
      placeholder="All"
      clearable
      searchable
      data={data}
      value={value ?? null}
      onChange={set}
      onSearchChange={setTyped}
    />
  );
}
