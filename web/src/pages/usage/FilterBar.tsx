/** The filters that overview, usage and cache share. They stand in the URL, so that a link shows what was on screen. */
import { Button, Group, Select, TextInput } from '@mantine/core';

import type { UsageFilters } from '~/app/search';
import { useToday } from '~/time/days';

import { type ChoiceProps, Keys, Models, Projects } from './choices';
import { LANES, spanChoices } from './search';

const OWN_SPAN = 'From … to …';

interface FilterBarProps {
  filters: UsageFilters;
  change: (filters: UsageFilters) => void;
  /** The tenant whose projects and models may be chosen; none over all tenants. */
  tenant?: string;
  /** Which filters there are beside the span. */
  only?: readonly ('project' | 'model' | 'lane' | 'key')[];
}

export function FilterBar({ filters, change, tenant, only = ['project', 'model', 'lane', 'key'] }: FilterBarProps) {
  const spans = spanChoices(useToday());
  const chosen = spans.find((span) => span.from === filters.from && span.to === filters.to)?.label ?? OWN_SPAN;
  const set = (name: keyof UsageFilters, value: string | null): void =>
    change({ ...filters, [name]: value === null || value === '' ? undefined : value });
  return (
    <Group gap="xs" align="flex-end" role="search" aria-label="Filters">
      <Select
        label="Span (UTC)"
        w={150}
        data={[...spans.map((span) => span.label), OWN_SPAN]}
        value={chosen}
        allowDeselect={false}
        onChange={(label) => {
          const span = spans.find((one) => one.label === label);
          if (span !== undefined) change({ ...filters, from: span.from, to: span.to });
          else change({ ...filters, from: spans[3]!.from, to: spans[2]!.to });
        }}
      />
      {chosen === OWN_SPAN && (
        <>
          <DayInput label="From" value={filters.from} set={(value) => set('from', value)} />
          <DayInput label="To, not included" value={filters.to} set={(value) => set('to', value)} />
        </>
      )}
      {tenant !== undefined && only.includes('project') && (
        <Projects tenant={tenant} value={filters.project} set={(value) => set('project', value)} />
      )}
      {only.includes('model') && (
        <Models tenant={tenant} filters={filters} value={filters.model} set={(value) => set('model', value)} />
      )}
      {only.includes('lane') && (
        <Select
          label="Lane"
          w={130}
          placeholder="All"
          clearable
          data={[...LANES]}
          value={filters.lane ?? null}
          onChange={(value) => set('lane', value)}
        />
      )}
      {tenant !== undefined && only.includes('key') && (
        <Keys tenant={tenant} value={filters.key} set={(value) => set('key', value)} />
      )}
      {Object.values(filters).some((value) => value !== undefined) && (
        <Button
          variant="default"
          onClick={() => change(Object.fromEntries(Object.keys(filters).map((name) => [name, undefined])))}
        >
          Clear
        </Button>
      )}
    </Group>
  );
}

function DayInput({ label, value, set }: ChoiceProps & { label: string }) {
  return (
    <TextInput
      type="date"
      label={label}
      w={150}
      value={value?.slice(0, 10) ?? ''}
      onChange={(event) => set(event.currentTarget.value)}
    />
  );
}
