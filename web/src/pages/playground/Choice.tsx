/** One of a few texts. */
import { NativeSelect } from '@mantine/core';

interface ChoiceProps {
  label: string;
  value: string;
  /** What is chosen, and its name. */
  choices: [value: string, label: string][];
  set: (value: string) => void;
  error?: string;
}

export function Choice({ label, value, choices, set, error }: ChoiceProps) {
  return (
    <NativeSelect
      label={label}
      value={value}
      error={error}
      data={choices.map(([one, text]) => ({ value: one, label: text }))}
      onChange={(event) => set(event.currentTarget.value)}
    />
  );
}
