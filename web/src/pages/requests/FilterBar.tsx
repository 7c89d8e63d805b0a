/** The filters of the requests. They stand in the URL, so that a link shows the same list. */
import { Button, Group, NativeSelect, NumberInput, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';

import { Keys, Models, Projects } from '../usage/choices';
import { fromInput, LANES, type RequestFilters, requestFilters, STATUSES, toInput } from './search';

interface FilterBarProps {
  tenant: string;
  filters: RequestFilters;
  apply: (filters: RequestFilters) => void;
}

export function FilterBar({ tenant, filters, apply }: FilterBarProps) {
  const [draft, setDraft] = useState<Record<string, string | undefined>>({ ...filters });
  const set = (name: string, value: string | undefined): void => setDraft({ ...draft, [name]: value });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    apply(requestFilters(draft));
  };
  const choice = (name: 'lane' | 'status', label: string, values: readonly string[]) => (
    <NativeSelect
      label={label}
      value={draft[name] ?? ''}
      data={[{ value: '', label: 'all' }, ...values]}
      onChange={(event) => set(name, event.currentTarget.value)}
    />
  );
  const moment = (name: 'from' | 'to', label: string) => (
    <TextInput
      type="datetime-local"
      label={label}
      value={toInput(draft[name])}
      onChange={(event) => set(name, fromInput(event.currentTarget.value))}
    />
  );
  return (
    <form onSubmit={submit} role="search" aria-label="Filters">
      <Group gap="xs" align="flex-end">
        {moment('from', 'From (UTC)')}
        {moment('to', 'To (UTC)')}
        <Projects tenant={tenant} value={draft.project} set={(value) => set('project', value ?? undefined)} />
        <Keys tenant={tenant} value={draft.key} set={(value) => set('key', value ?? undefined)} />
        <Models tenant={tenant} filters={{}} value={draft.model} set={(value) => set('model', value ?? undefined)} />
        {choice('lane', 'Lane', LANES)}
        {choice('status', 'Status', STATUSES)}
        <NumberInput
          label="Took at least"
          w={110}
          suffix=" s"
          min={0}
          decimalScale={3}
          hideControls
          value={draft.took ?? ''}
          onChange={(value) => set('took', value === '' ? undefined : String(value))}
        />
        <Button type="submit">Filter</Button>
        <Button variant="default" onClick={() => apply({})}>
          Clear
        </Button>
      </Group>
    </form>
  );
}
