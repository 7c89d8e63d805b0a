/** Sets a budget, in place of one for the same subject and window. */
import { NativeSelect, Select, TagsInput, Text, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { api, query, type Schema } from '~/api/client';
import { fieldError, Form } from '~/components/forms';

import { KEYS_PATH } from '../keys/path';
import { BUDGETS_PATH } from './BudgetsPage';
import type { Budget } from './forecast';

type Body = Schema<'NewBudget'>;

interface BudgetFormProps {
  tenant: string;
  present: Budget | null;
  projects: Schema<'ProjectObject'>[];
  done: () => void;
}

export function BudgetForm({ tenant, present, projects, done }: BudgetFormProps) {
  const [scope, setScope] = useState<Budget['scope']>(present?.scope ?? 'tenant');
  const [subject, setSubject] = useState(present?.subject ?? '');
  const [span, setSpan] = useState<Budget['window']>(present?.window ?? 'month');
  const [limit, setLimit] = useState(present?.limit ?? '');
  const [action, setAction] = useState<Budget['action']>(present?.action ?? 'block');
  const [thresholds, setThresholds] = useState((present?.thresholds ?? [50, 80, 100]).map(String));
  const queries = useQueryClient();
  const set = useMutation({
    mutationFn: () => {
      const body = {
        ...{ limit, window: span, action, thresholds: thresholds.map(Number), dry_run: false },
        ...(scope === 'tenant' ? {} : { [scope]: scope === 'project' && subject === '' ? projects[0]?.id : subject }),
      } as Body;
      return api.POST(BUDGETS_PATH, { params: { path: { tenant } }, body });
    },
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ['get', BUDGETS_PATH] });
      done();
    },
  });
  const fixed = present !== null;
  return (
    <Form submit={() => set.mutate()} error={set.error} pending={set.isPending} action="Save">
      <NativeSelect
        label="For"
        disabled={fixed}
        data={[
          { value: 'tenant', label: 'The whole tenant' },
          { value: 'project', label: 'A project' },
          { value: 'key', label: 'A key' },
          { value: 'tag', label: 'A tag' },
        ]}
        value={scope}
        onChange={(event) => {
          setScope(event.currentTarget.value as Budget['scope']);
          setSubject('');
        }}
      />
      {scope === 'project' && (
        <NativeSelect
          label="Project"
          disabled={fixed}
          data={projects.map((one) => ({ value: one.id, label: one.name }))}
          value={subject}
          error={fieldError(set.error, 'project')}
          onChange={(event) => setSubject(event.currentTarget.value)}
        />
      )}
      {scope === 'key' && fixed && <TextInput label="Key" disabled value={present.name} />}
      {scope === 'key' && !fixed && (
        <KeyChoice tenant={tenant} value={subject} set={setSubject} error={fieldError(set.error, 'key')} />
      )}
      {scope === 'tag' && (
        <TextInput
          label="Tag"
          disabled={fixed}
          required
          value={subject}
          error={fieldError(set.error, 'tag')}
          onChange={(event) => setSubject(event.currentTarget.value)}
        />
      )}
      <NativeSelect
        label="In"
        disabled={fixed}
        data={[
          { value: 'day', label: 'Each day (UTC)' },
          { value: 'month', label: 'Each month (UTC)' },
          { value: 'total', label: 'All time' },
        ]}
        value={span}
        error={fieldError(set.error, 'window')}
        onChange={(event) => setSpan(event.currentTarget.value as Budget['window'])}
      />
      <TextInput
        label={present === null ? 'Limit' : `Limit in ${present.currency}`}
        description="A decimal amount in the tenant's currency."
        inputMode="decimal"
        required
        data-autofocus
        value={limit}
        error={fieldError(set.error, 'limit')}
        onChange={(event) => setLimit(event.currentTarget.value)}
      />
      <NativeSelect
        label="When it is used up"
        data={[
          { value: 'block', label: 'Refuse requests' },
          { value: 'notify', label: 'Only send a webhook' },
        ]}
        value={action}
        error={fieldError(set.error, 'action')}
        onChange={(event) => setAction(event.currentTarget.value as Budget['action'])}
      />
      <TagsInput
        label="Warn at"
        description="Percentages of the limit at which a webhook is sent; Enter adds one."
        value={thresholds}
        error={fieldError(set.error, 'thresholds')}
        onChange={setThresholds}
      />

      {fixed && (
        <Text size="sm" c="dimmed">
          It takes the place of the present one; what was spent in this window still counts.
        </Text>
      )}
    </Form>
  );
}

interface KeyChoiceProps {
  tenant: string;
  value: string;
  set: (key: string) => void;
  error: string | undefined;
}

/** A key by its name. Of more than a hundred the first are offered; any other is typed by its id. */
function KeyChoice({ tenant, value, set, error }: KeyChoiceProps) {
  const [typed, setTyped] = useState('');
  const keys =
    query.useQuery('get', KEYS_PATH, { params: { path: { tenant }, query: { limit: 100 } } }).data?.data ?? [];
  const data = keys
    .filter((key) => key.project_id !== null && key.state === 'active')
    .map((key) => ({ value: key.id, label: key.name === '' ? key.id : `${key.name} (${key.id})` }));
  if (typed !== '' && !data.some((one) => one.label === typed)) data.push({ value: typed, label: typed });
  return (
    <Select
      label="Key"
      required
      searchable
      data={data}
      value={value || null}
      error={error}
      onSearchChange={setTyped}
      onChange={(key) => set(key ?? '')}
    />
  );
}
