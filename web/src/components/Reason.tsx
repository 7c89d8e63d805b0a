/** Why something is done. */
import { TextInput } from '@mantine/core';

import { fieldError } from './forms';

interface ReasonProps {
  value: string;
  set: (value: string) => void;
  error: unknown;
}

/** The field of a form that asks for it; its name in the body is `reason`. */
export function Reason({ value, set, error }: ReasonProps) {
  return (
    <TextInput
      label="Why"
      description="Kept in the audit log."
      maxLength={500}
      value={value}
      error={fieldError(error, 'reason')}
      onChange={(event) => set(event.currentTarget.value)}
    />
  );
}
