/** Money that goes in and out: grants, payments, refunds, the credit line, corrections of usage. */
import { Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';

import { api, query, type Schema } from '~/api/client';
import { Facts } from '~/components/Facts';
import { Money } from '~/components/values';

import { ActionDialog, type Field, type Values } from '../components/ActionDialog';
import { uuid7 } from '../components/uuid7';

type Balance = Schema<'BalanceObject'>;

const AT = '/admin/v1/tenants/{tenant}';

/** The end of a day as an instant; null without a day. */
function endOf(day: string | undefined): string | null {
  return day ? `${day}T23:59:59Z` : null;
}

interface MoneyActionsProps {
  tenant: string;
  balance: Balance;
}

export function MoneyActions({ tenant, balance }: MoneyActionsProps) {
  const queries = useQueryClient();
  const params = { path: { tenant } };
  const { currency } = balance;
  const projects = query.useQuery('get', `${AT}/projects`, { params: { ...params, query: { limit: 100 } } });
  const refresh = (): void => {
    void queries.invalidateQueries({
      predicate: ({ queryKey }) => /balance|grants|statement/.test(String(queryKey[1])),
    });
  };
  const amount: Field = { name: 'amount', label: `Amount in ${currency}`, kind: 'amount', required: true };
  const reason: Field = { name: 'reason', label: 'Reason', required: true };
  const expires: Field = {
    name: 'expires_at',
    label: 'Last day',
    kind: 'date',
    about: 'What is unused then is lost. Empty: never.',
  };
  const body = (values: Values, id: string, dryRun: boolean) => ({
    amount: values.amount!,
    currency,
    reason: values.reason!,
    id,
    dry_run: dryRun,
  });
  const grant = async (values: Values, id: string, dryRun: boolean) =>
    (
      await api.POST(`${AT}/grants`, {
        params,
        body: {
          ...body(values, id, dryRun),
          expires_at: endOf(values.expires_at),
          model: values.model || null,
          project: values.project || null,
        },
      })
    ).data!;
  const payment = async (values: Values, id: string, dryRun: boolean) =>
    (
      await api.POST(`${AT}/payments`, {
        params,
        body: { ...body(values, id, dryRun), expires_at: endOf(values.expires_at) },
      })
    ).data!;
  const refund = async (values: Values, id: string, dryRun: boolean) =>
    (await api.POST(`${AT}/refunds`, { params, body: body(values, id, dryRun) })).data!;
  const creditLine = async (values: Values, dryRun: boolean) =>
    (await api.PUT(`${AT}/credit-line`, { params, body: { amount: values.amount!, dry_run: dryRun } })).data!;
  return (
    <>
      <OneTime
        label="Record a payment"
        title="Record a payment"
        fields={[amount, reason, expires]}
        send={payment}
        action="Record"
        done="The payment was recorded."
        onDone={refresh}
      />
      <OneTime
        label="Give a grant"
        title="Give a grant"
        about="Money that the tenant did not pay."
        fields={[
          amount,
          reason,
          expires,
          { name: 'model', label: 'Only for the model', about: 'Empty: for every model.' },
          {
            name: 'project',
            label: 'Only for the project',
            kind: 'select',
            options: [
              { value: '', label: 'every project' },
              ...(projects.data?.data ?? []).map((project) => ({ value: project.id, label: project.name })),
            ],
          },
        ]}
        send={grant}
        action="Give"
        done="The grant was given."
        onDone={refresh}
      />
      <OneTime
        label="Record a refund"
        title="Record a refund"
        about="Paid money, unused and not held, that was paid back."
        fields={[amount, reason]}
        send={refund}
        action="Record"
        done="The refund was recorded."
        onDone={refresh}
      />
      <ActionDialog
        label="Credit line"
        title="Set the credit line"
        about="How much may be used before it is paid; 0: prepaid. Raising it may need a second person."
        fields={[{ ...amount, initial: balance.credit_line.replace(/\.?0+$/, '') || '0' }]}
        action="Set"
        check={async (values) => {
          const after = (await creditLine(values, true)) as Balance;
          return (
            <Facts
              label="The balance as it would be"
              facts={[
                { name: 'Credit line', value: <Money amount={after.credit_line} currency={currency} /> },
                { name: 'Available', value: <Money amount={after.available} currency={currency} /> },
              ]}
            />
          );
        }}
        run={(values) => creditLine(values, false)}
        done="The credit line was set."
        onDone={refresh}
      />
      <Adjustment tenant={tenant} refresh={refresh} />
    </>
  );
}

interface OneTimeProps {
  label: string;
  title: string;
  about?: string;
  fields: Field[];
  action: string;
  done: string;
  onDone: () => void;
  /** Sends it under an id of our own: sent twice, it counts once. */
  send: (values: Values, id: string, dryRun: boolean) => Promise<unknown>;
}

function OneTime({ send, fields, ...shown }: OneTimeProps) {
  const id: Field = {
    name: 'id',
    label: 'Your id of it',
    about: 'Sent twice under one id, it counts once.',
    required: true,
    initial: uuid7(),
  };
  return (
    <ActionDialog
      {...shown}
      fields={[...fields, id]}
      check={async (values) => <Available check={(await send(values, values.id!, true)) as Schema<'MoneyCheck'>} />}
      run={(values) => send(values, values.id!, false)}
    />
  );
}

function Available({ check }: { check: Schema<'MoneyCheck'> | Schema<'PendingChangeObject'> }) {
  if (check.object !== 'balance.check') return <Text size="sm">It would wait for a second person.</Text>;
  return (
    <Facts
      label="The balance as it would be"
      facts={[
        { name: 'Available now', value: <Money amount={check.available} currency={check.currency} /> },
        { name: 'Available then', value: <Money amount={check.would_be_available} currency={check.currency} /> },
      ]}
    />
  );
}

const UNITS = /^\s*([a-z_0-9]+)\s*=\s*(-?\d+)\s*$/;

/** Units by meter of a text such as `output = -120`, one a row. Throws Error for another text. */
export function parseUnits(text: string): Record<string, number> {
  const units: Record<string, number> = {};
  for (const row of text.split('\n').filter((one) => one.trim() !== '')) {
    const match = UNITS.exec(row);
    if (match === null) throw new Error(`“${row.trim()}” is not units of a meter such as output = -120.`);
    units[match[1]!] = Number(match[2]);
  }
  return units;
}

function Adjustment({ tenant, refresh }: { tenant: string; refresh: () => void }) {
  const post = async (values: Values, dryRun: boolean) => {
    const body = {
      request: values.request!,
      units: parseUnits(values.units!),
      reason: values.reason!,
      id: values.id!,
      dry_run: dryRun,
    };
    return (await api.POST(`${AT}/adjustments`, { params: { path: { tenant } }, body })).data!;
  };
  return (
    <ActionDialog
      label="Correct usage"
      title="Correct the usage of a request"
      about="Nothing is edited: a correction is an event of its own, priced as the request was."
      fields={[
        { name: 'request', label: 'Request', required: true, about: 'Its id, req_…' },
        {
          name: 'units',
          label: 'Units',
          kind: 'lines',
          required: true,
          about: 'One meter a row: output = -120 takes 120 tokens away.',
        },
        { name: 'reason', label: 'Reason', required: true },
        {
          name: 'id',
          label: 'Your id of it',
          required: true,
          initial: uuid7(),
          about: 'Sent twice under one id, it counts once.',
        },
      ]}
      action="Correct"
      check={async (values) => {
        const made = await post(values, true);
        return (
          <>
            It would change {made.period} by <Money amount={made.cost} currency={made.currency} />.
          </>
        );
      }}
      run={(values) => post(values, false)}
      done="The correction was made."
      onDone={refresh}
    />
  );
}
