/** The form of all terms of a tenant; what it says replaces all that was set for the month. */
import {
  Alert,
  Button,
  Checkbox,
  Fieldset,
  Group,
  NativeSelect,
  Stack,
  Text,
  Textarea,
  TextInput,
} from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { api, isPending, type Schema } from '~/api/client';
import { fieldError, Form } from '~/components/forms';
import { dayOf, monthOf } from '~/time/days';

import { CommitmentFields, type EditedCommitment } from './CommitmentFields';
import { CommitmentSchedule } from './CommitmentSchedule';
import { TermsShown } from './TermsShown';
import { basisPoints, formatSteps, namesOf, parseSteps, percentOf } from './terms_text';

const PATH = '/admin/v1/tenants/{tenant}/terms';
const LANES = ['standard', 'interactive', 'batch'];

interface TiersRow {
  kind: string;
  model: string;
  meter: string;
  lane: string;
  steps: string;
}

interface DiscountRow {
  percent: string;
  models: string;
}

interface Edited {
  from: string;
  reason: string;
  tiers: TiersRow[];
  discounts: DiscountRow[];
  minimum: string;
  minimumFirst: string;
  minimumLast: string;
  prorated: boolean;
  commitment: EditedCommitment;
}

function editedOf({ terms }: Schema<'ContractObject'>): Edited {
  return {
    from: monthOf(dayOf(Date.now())),
    reason: '',
    tiers: (terms.tiers ?? []).map(({ kind, model, meter, lane, steps }) => ({
      kind,
      model,
      meter,
      lane: lane ?? 'standard',
      steps: formatSteps(steps),
    })),
    discounts: (terms.discounts ?? []).map((one) => ({
      percent: percentOf(one.basis_points),
      models: (one.models ?? []).join(', '),
    })),
    minimum: terms.minimum?.amount ?? '',
    minimumFirst: terms.minimum?.first ?? '',
    minimumLast: terms.minimum?.last ?? '',
    prorated: terms.minimum?.prorated ?? true,
    commitment: {
      amount: terms.commitment?.amount ?? '',
      first: terms.commitment?.first ?? '',
      last: terms.commitment?.last ?? '',
      invoiced: terms.commitment?.invoiced ?? true,
      payments: [...(terms.commitment?.payments ?? [])],
    },
  };
}

function termsOf(edited: Edited): Schema<'TermsObject'> {
  return {
    tiers: edited.tiers.map((row, n) => ({
      kind: row.kind === 'volume' ? 'volume' : 'graduated',
      model: row.model,
      meter: row.meter,
      lane: row.lane,
      steps: parseSteps(row.steps, `terms.tiers[${n}].steps`),
    })),
    discounts: edited.discounts.map((row, n) => ({
      basis_points: basisPoints(row.percent, `terms.discounts[${n}].basis_points`),
      models: namesOf(row.models),
    })),
    minimum: edited.minimum
      ? {
          amount: edited.minimum,
          first: edited.minimumFirst,
          last: edited.minimumLast,
          prorated: edited.prorated,
        }
      : null,
    commitment: edited.commitment.amount ? edited.commitment : null,
  };
}

interface TermsFormProps {
  tenant: string;
  contract: Schema<'ContractObject'>;
  close: () => void;
}

export function TermsForm({ tenant, contract, close }: TermsFormProps) {
  const [edited, setEdited] = useState(() => editedOf(contract));
  const queries = useQueryClient();
  const send = useMutation({
    mutationFn: async (dryRun: boolean) => {
      const body = { terms: termsOf(edited), from_period: edited.from || null, reason: edited.reason, dry_run: dryRun };
      return (await api.POST(PATH, { params: { path: { tenant } }, body })).data!;
    },
    onSuccess: async (answer, dryRun) => {
      if (dryRun) return;
      await queries.invalidateQueries({ predicate: ({ queryKey }) => /terms/.test(String(queryKey[1])) });
      notifications.show({
        message: isPending(answer) ? 'The terms were proposed, and wait for a second person.' : 'The terms were set.',
      });
      close();
    },
  });
  const set = (changed: Partial<Edited>): void => {
    send.reset();
    setEdited({ ...edited, ...changed });
  };
  const error = (field: string): string | undefined => fieldError(send.error, field);
  const checked = send.data?.object === 'terms' && send.variables ? send.data : undefined;
  return (
    <Form
      submit={() => send.mutate(false)}
      error={send.error}
      pending={send.isPending && !send.variables}
      action="Set terms"
      cancel={close}
      buttons={
        <Button variant="default" loading={send.isPending && send.variables} onClick={() => send.mutate(true)}>
          Check
        </Button>
      }
    >
      <Group align="flex-start">
        <TextInput
          label="From the month"
          required
          data-autofocus
          value={edited.from}
          error={error('from_period')}
          onChange={({ currentTarget: { value } }) => set({ from: value })}
        />
        <TextInput
          label="Reason"
          value={edited.reason}
          error={error('reason')}
          onChange={({ currentTarget: { value } }) => set({ reason: value })}
        />
      </Group>
      <Discounts rows={edited.discounts} change={(discounts) => set({ discounts })} error={error} />
      <Tiers rows={edited.tiers} change={(tiers) => set({ tiers })} error={error} />
      <Fieldset legend="Minimum">
        <Group align="flex-start">
          <TextInput
            label="Minimum a month"
            inputMode="decimal"
            placeholder="none"
            value={edited.minimum}
            error={error('terms.minimum.amount')}
            onChange={({ currentTarget: { value } }) => set({ minimum: value })}
          />
          {edited.minimum !== '' && (
            <>
              <TextInput
                label="In force from"
                type="date"
                value={edited.minimumFirst}
                error={error('terms.minimum.first')}
                onChange={({ currentTarget: { value } }) => set({ minimumFirst: value })}
              />
              <TextInput
                label="to"
                type="date"
                value={edited.minimumLast}
                error={error('terms.minimum.last')}
                onChange={({ currentTarget: { value } }) => set({ minimumLast: value })}
              />
              <Checkbox
                mt={32}
                label="In proportion to the days of a month"
                checked={edited.prorated}
                error={error('terms.minimum.prorated')}
                onChange={({ currentTarget: { checked } }) => set({ prorated: checked })}
              />
            </>
          )}
        </Group>
      </Fieldset>
      <Fieldset legend="Commitment">
        <CommitmentFields
          commitment={edited.commitment}
          change={(commitment) => set({ commitment })}
          error={(field) => error(`terms.commitment.${field}`)}
        />
      </Fieldset>
      {checked !== undefined && (
        <Alert variant="outline" color="gray" role="status" title={`From ${checked.from_period} on`}>
          <TermsShown terms={checked.terms} />
          {checked.terms.commitment && <CommitmentSchedule months={checked.schedule ?? []} />}
        </Alert>
      )}
    </Form>
  );
}

interface DiscountsProps {
  rows: DiscountRow[];
  change: (rows: DiscountRow[]) => void;
  error: (field: string) => string | undefined;
}

function Discounts({ rows, change, error }: DiscountsProps) {
  const set = (index: number, changed: Partial<DiscountRow>): void =>
    change(rows.map((row, n) => (n === index ? { ...row, ...changed } : row)));
  return (
    <Fieldset legend="Discounts">
      <Stack>
        <Text size="sm" c="dimmed">
          Discounts of the same model add up, to 100 % at most.
        </Text>
        {rows.map((row, index) => (
          <Group key={index} align="flex-start">
            <TextInput
              label={`Percent off, discount ${index + 1}`}
              required
              inputMode="decimal"
              value={row.percent}
              error={error(`terms.discounts[${index}].basis_points`)}
              onChange={({ currentTarget: { value } }) => set(index, { percent: value })}
            />
            <TextInput
              label={`Models of discount ${index + 1}`}
              placeholder="all"
              value={row.models}
              error={error(`terms.discounts[${index}].models`)}
              onChange={({ currentTarget: { value } }) => set(index, { models: value })}
            />
            <Button variant="default" onClick={() => change(rows.filter((_, n) => n !== index))}>
              Remove discount {index + 1}
            </Button>
          </Group>
        ))}
        <div>
          <Button variant="default" size="xs" onClick={() => change([...rows, { percent: '', models: '' }])}>
            Add a discount
          </Button>
        </div>
      </Stack>
    </Fieldset>
  );
}

interface TiersProps {
  rows: TiersRow[];
  change: (rows: TiersRow[]) => void;
  error: (field: string) => string | undefined;
}

function Tiers({ rows, change, error }: TiersProps) {
  const set = (index: number, changed: Partial<TiersRow>): void =>
    change(rows.map((row, n) => (n === index ? { ...row, ...changed } : row)));
  return (
    <Fieldset legend="Steps by volume">
      <Stack>
        {rows.map((row, index) => (
          <Stack key={index} gap="xs">
            <Group align="flex-end">
              <NativeSelect
                label={`Kind of steps ${index + 1}`}
                data={[
                  { value: 'graduated', label: 'graduated: each part at its step' },
                  { value: 'volume', label: 'volume: all at the last step' },
                ]}
                value={row.kind}
                error={error(`terms.tiers[${index}].kind`)}
                onChange={({ currentTarget: { value } }) => set(index, { kind: value })}
              />
              <TextInput
                label="Model"
                required
                value={row.model}
                error={error(`terms.tiers[${index}].model`)}
                onChange={({ currentTarget: { value } }) => set(index, { model: value })}
              />
              <TextInput
                label="Meter"
                required
                placeholder="output"
                value={row.meter}
                error={error(`terms.tiers[${index}].meter`)}
                onChange={({ currentTarget: { value } }) => set(index, { meter: value })}
              />
              <NativeSelect
                label="Lane"
                data={LANES}
                value={row.lane}
                error={error(`terms.tiers[${index}].lane`)}
                onChange={({ currentTarget: { value } }) => set(index, { lane: value })}
              />
            </Group>
            <Textarea
              label="Steps"
              description="One a row: up to 1000000 = 0.50, and last: rest = 0.40 (per 1,000,000 units)."
              required
              autosize
              minRows={2}
              value={row.steps}
              error={error(`terms.tiers[${index}].steps`)}
              onChange={({ currentTarget: { value } }) => set(index, { steps: value })}
            />
            <div>
              <Button variant="default" size="xs" onClick={() => change(rows.filter((_, n) => n !== index))}>
                Remove steps {index + 1}
              </Button>
            </div>
          </Stack>
        ))}
        {rows.length === 0 && (
          <Text size="sm" c="dimmed">
            None: each unit has its list price.
          </Text>
        )}
        <div>
          <Button
            variant="default"
            size="xs"
            onClick={() =>
              change([...rows, { kind: 'graduated', model: '', meter: 'output', lane: 'standard', steps: '' }])
            }
          >
            Add steps
          </Button>
        </div>
      </Stack>
    </Fieldset>
  );
}
