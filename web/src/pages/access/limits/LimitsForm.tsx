/** Sets or removes the rate limits of a project or key. */
import { Button, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { fieldError, Form } from '~/components/forms';

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
  return (
    <Form
      submit={() => write.mutate(false)}
      error={write.error}
      pending={write.isPending && !write.variables}
      action="Save"
      buttons={
        present !== null && (
          <Button
            variant="default"
            mr="auto"
            loading={write.isPending && write.variables}
            onClick={() => write.mutate(true)}
          >
            Remove all
          </Button>
        )
      }
    >
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
    </Form>
  );
}
