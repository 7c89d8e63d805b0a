/** What both pages of batches show: the bar, the cost, a download, and the filters above a list. */
import { Button, Group, NativeSelect, Progress, Stack, Text, TextInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';

import { download } from '~/api/client';
import { asProblem } from '~/api/problem';
import { Money } from '~/components/values';

import { type Batch, partsOf, progressText } from './progress';

/** How far a batch is, as a bar and in words. */
export function ProgressBar({ batch }: { batch: Batch }) {
  return (
    <Stack gap={4} miw={140}>
      <Text size="sm">{progressText(batch.counts)}</Text>
      <Progress.Root size="sm">
        {partsOf(batch.counts).map((part) => (
          <Progress.Section
            key={part.name}
            value={part.share}
            color={part.color}
            aria-label={`Lines ${part.name} of ${batch.id}`}
          />
        ))}
      </Progress.Root>
    </Stack>
  );
}

/** What a batch cost until now, in each currency; a dash where the books have nothing of it. */
export function Cost({ batch }: { batch: Batch }) {
  if (batch.cost.length === 0) return <>–</>;
  return (
    <>
      {batch.cost.map(({ amount, currency }) => (
        <div key={currency}>
          <Money amount={amount} currency={currency} places={4} />
        </div>
      ))}
    </>
  );
}

/** Downloads a file of the API. Where that is refused the server's words stand below. */
export function Download({ path, label, children }: { path: string; label: string; children: string }) {
  const get = useMutation({ mutationFn: () => download(path) });
  return (
    <Stack gap={2} align="flex-start">
      <Button size="xs" variant="default" aria-label={label} loading={get.isPending} onClick={() => get.mutate()}>
        {children}
      </Button>
      {get.error !== null && (
        <Text size="xs" c="var(--mantine-color-error)" role="alert" className="wraps">
          {asProblem(get.error).message}
        </Text>
      )}
    </Stack>
  );
}

interface FiltersProps {
  project?: string;
  /** The other filter: its label, what it may be, and what it is. */
  label: string;
  options: { value: string; label: string }[];
  chosen?: string;
  apply: (project: string | undefined, chosen: string | undefined) => void;
}

/** The filters of a list: a project, and one of some words. */
export function Filters({ project, label, options, chosen, apply }: FiltersProps) {
  const [draft, setDraft] = useState(project ?? '');
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    apply(draft.trim() || undefined, chosen);
  };
  return (
    <form onSubmit={submit} role="search" aria-label="Filters">
      <Group gap="xs" align="flex-end">
        <TextInput size="xs" label="Project" value={draft} onChange={(event) => setDraft(event.currentTarget.value)} />
        <NativeSelect
          size="xs"
          label={label}
          data={[{ value: '', label: 'all' }, ...options]}
          value={chosen ?? ''}
          onChange={(event) => apply(project, event.currentTarget.value || undefined)}
        />
        <Button size="xs" type="submit">
          Filter
        </Button>
      </Group>
    </form>
  );
}

/** A filter as the API takes it. */
export function listOf(value: string | undefined): string[] | undefined {
  return value === undefined ? undefined : [value];
}
