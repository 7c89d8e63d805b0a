/** The filters of the requests. They stand in the URL, so that a link shows the same list. */
import { Button, Group, NativeSelect, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';

import { fromInput, LANES, type RequestFilters, requestFilters, STATUSES, toInput } from './search';

interface FilterBarProps {
  filters: RequestFilters;
  apply: (filters: RequestFilters) => void;
}

export function FilterBar({ filters, apply }: FilterBarProps) {
  const [draft, setDraft] = useState<Record<string, string | undefined>>({ ...filters });
  const set = (name: string, value: string | undefined): void => setDraft({ ...draft, [name]: value });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    apply(requestFilters(draft));
  };
  const words = (name: 'project' | 'model' | 'key', label: string) => (
    <TextInput
      size="xs"
      label={label}
      value={draft[name] ?? ''}
      onChange={(event) => set(name, event.currentTarget.value)}
    />
  );
  const choice = (name: 'lane' | 'status', label: string, values: readonly string[]) => (
    <NativeSelect
      size="xs"
      label={label}
      value={draft[name] ?? ''}
      data={[{ value: '', label: 'all' }, ...values]}
      onChange={(event) => set(name, event.currentTarget.value)}
    />
  );
  const moment = (name: 'from' | 'to', label: string) => (
    <TextInput
      size="xs"
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
        {words('project', 'Project')}
        {words('key', 'Key')}
        {words('model', 'Model')}
        {choice('lane', 'Lane', LANES)}
        {choice('status', 'Status', STATUSES)}
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
