/** The commitment of a tenant's terms: its months, how it is funded, and what was paid in another way. */
import { Button, Checkbox, Group, Stack, TextInput } from '@mantine/core';

export interface PaymentRow {
  amount: string;
  reference: string;
  reason: string;
}

export interface EditedCommitment {
  amount: string;
  first: string;
  last: string;
  invoiced: boolean;
  payments: PaymentRow[];
}

interface CommitmentFieldsProps {
  commitment: EditedCommitment;
  change: (commitment: EditedCommitment) => void;
  /** What the server says of a field, such as `payments[0].amount`. */
  error: (field: string) => string | undefined;
}

export function CommitmentFields({ commitment, change, error }: CommitmentFieldsProps) {
  const set = (changed: Partial<EditedCommitment>): void => change({ ...commitment, ...changed });
  return (
    <Stack>
      <Group align="flex-start">
        <TextInput
          label="Committed amount"
          inputMode="decimal"
          placeholder="none"
          value={commitment.amount}
          error={error('amount')}
          onChange={({ currentTarget: { value } }) => set({ amount: value })}
        />
        {commitment.amount !== '' && (
          <>
            <TextInput
              label="First month"
              required
              placeholder="2026-11"
              value={commitment.first}
              error={error('first')}
              onChange={({ currentTarget: { value } }) => set({ first: value })}
            />
            <TextInput
              label="Last month"
              required
              placeholder="2027-10"
              value={commitment.last}
              error={error('last')}
              onChange={({ currentTarget: { value } }) => set({ last: value })}
            />
          </>
        )}
      </Group>
      {commitment.amount !== '' && (
        <>
          <Checkbox
            label="Ask for it on the first month's invoice"
            description="Less what was paid in another way. Where the amount is raised, a later invoice asks for the difference."
            checked={commitment.invoiced}
            error={error('invoiced')}
            onChange={({ currentTarget: { checked: invoiced } }) => set({ invoiced })}
          />
          <Payments rows={commitment.payments} change={(payments) => set({ payments })} error={error} />
        </>
      )}
    </Stack>
  );
}

interface PaymentsProps {
  rows: PaymentRow[];
  change: (rows: PaymentRow[]) => void;
  error: (field: string) => string | undefined;
}

function Payments({ rows, change, error }: PaymentsProps) {
  const set = (index: number, changed: Partial<PaymentRow>): void =>
    change(rows.map((row, n) => (n === index ? { ...row, ...changed } : row)));
  return (
    <Stack gap="xs">
      {rows.map((row, index) => (
        <Group key={index} align="flex-end">
          {(
            [
              ['amount', `Amount of payment ${index + 1}`],
              ['reference', `Reference of payment ${index + 1}`],
              ['reason', `Reason of payment ${index + 1}`],
            ] as const
          ).map(([name, label]) => (
            <TextInput
              key={name}
              label={label}
              required
              value={row[name]}
              error={error(`payments[${index}].${name}`)}
              onChange={({ currentTarget: { value } }) => set(index, { [name]: value })}
            />
          ))}
          <Button variant="default" onClick={() => change(rows.filter((_, n) => n !== index))}>
            Remove payment {index + 1}
          </Button>
        </Group>
      ))}
      <div>
        <Button
          variant="default"
          size="xs"
          onClick={() => change([...rows, { amount: '', reference: '', reason: '' }])}
        >
          Add a payment that came in another way
        </Button>
      </div>
    </Stack>
  );
}
