/** Sets or removes the rate limits of a project or key. */
import { Button, Group, Stack, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';

import { fieldError, FormProblem } from '~/components/forms';

import { Reason } from '~/components/Reason';
import { FIELDS, type Limits, LIMITS_KEY, newLimits, type Subject, typedOf, writeLimits } from './limits';

interface LimitsFormProps {
  at: Subject;
  present: Limits | null;
  done: () => void;
}

export function LimitsForm({ at, present, done }: LimitsFormProps) {
  const [typed, setTyped] = useState(() => typedOf(present));
  const [reason, setReason] = useState('');
  const queries = useQueryClient();
  const write = useMutation({
    mutationFn: (remove: boolean) => writeLimits(at, remove ? null : newLimits(typed, reason)),
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: [LIMITS_KEY] });
      done();
    },
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    write.mutate(false);
  };
  return (
    <form onSubmit={submit}>
      <Stack>
        {FIELDS.map(([name, label], place) => (
          <TextInput
            key={name}
            label={label}
            placeholder="no limit"
            inputMode="numeric"
            data-autofocus={place === 0 || undefined}
            value={typed[name]}
            error={fieldError(write.error, name)}
            onChange={(event) => setTyped({ ...typed, [name]: event.currentTarget.value })}
          />
        ))}
        <Reason value={reason} set={setReason} error={write.error} />
        <FormProblem error={write.error} fields={[...FIELDS.map(([name]) => name), 'reason']} />
        <Group justify="space-between">
          {present === null ? (
            <span />
          ) : (
            <Button variant="default" loading={write.isPending && write.variables} onClick={() => write.mutate(true)}>
              Remove all
            </Button>
          )}
          <Button type="submit" loading={write.isPending && !write.variables}>
            Save
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
