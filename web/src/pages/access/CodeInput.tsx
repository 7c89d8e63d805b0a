/** The field for a code of an authenticator. The sixth digit submits; a recovery code is submitted by its form. */
import { TextInput } from '@mantine/core';

const DIGITS = 6;

interface CodeInputProps {
  value: string;
  error?: string;
  label?: string;
  set: (value: string) => void;
  /** Called with a whole code of digits, typed or pasted. */
  complete: (value: string) => void;
}

export function CodeInput({ value, error, label, set, complete }: CodeInputProps) {
  const enter = (text: string): void => {
    set(text);
    const digits = text.replace(/\s/g, ''); // authenticators show 123 456
    if (digits.length === DIGITS && /^\d+$/.test(digits)) complete(digits);
  };
  return (
    <TextInput
      label={label ?? 'Code of your authenticator, or a recovery code'}
      name="code"
      inputMode="numeric"
      autoComplete="one-time-code"
      required
      autoFocus
      value={value}
      error={error}
      onChange={(event) => enter(event.currentTarget.value)}
    />
  );
}
