/** What finance decides: what unmatched money is for, that a task is seen to, what a bank's file brought. */
import { api, type Schema } from '~/api/client';
import { Facts } from '~/components/Facts';
import { useTenants } from '~/app/TenantSwitcher';

import { ActionDialog, type Field, type Values } from '../components/ActionDialog';
import { useRefreshPayments } from './states';

type Receipt = Schema<'ReceiptObject'>;

const AT = '/admin/v1/payments';
const REASON: Field = { name: 'reason', label: 'Reason', required: true, about: 'For the audit log.' };

/** Lets unmatched money pay an invoice or go to a balance, or says that it was sent back. */
export function ReceiptActions({ receipt }: { receipt: Receipt }) {
  const refresh = useRefreshPayments();
  const tenants = useTenants() ?? [];
  const params = { path: { receipt: receipt.id } };
  const amount = `${receipt.amount} ${receipt.currency}`;
  const owner = tenants.find((tenant) => tenant.id === receipt.tenant_id);
  return (
    <>
      <ActionDialog
        label="Apply"
        title={`What ${amount} are for`}
        about={receipt.problem ?? undefined}
        size="xs"
        fields={[
          {
            name: 'tenant',
            label: 'Tenant',
            kind: 'select',
            required: true,
            options: [{ value: '', label: '–' }, ...tenants.map((tenant) => tenant.name)],
            initial: owner?.name ?? '',
          },
          {
            name: 'invoice',
            label: 'Number of the invoice',
            about: 'What is more than is left of it goes to the balance; all of it without a number.',
          },
          REASON,
        ]}
        action="Apply"
        run={async (values) => {
          const body = { tenant: values.tenant!, invoice: values.invoice || null, reason: values.reason! };
          return (await api.POST(`${AT}/receipts/{receipt}/apply`, { params, body })).data!;
        }}
        done="The money was applied."
        onDone={refresh}
      />
      <ActionDialog
        label="Sent back"
        title={`Say that ${amount} were sent back`}
        about="The bank or the provider sends money back; here it is only recorded, and cannot be undone."
        size="xs"
        danger
        fields={[REASON]}
        action="It was sent back"
        run={async (values) => {
          const body = { reason: values.reason! };
          return (await api.POST(`${AT}/receipts/{receipt}/return`, { params, body })).data!;
        }}
        done="It was recorded."
        onDone={refresh}
      />
    </>
  );
}

export function CloseTask({ task }: { task: Schema<'TaskObject'> }) {
  const refresh = useRefreshPayments();
  return (
    <ActionDialog
      label="Close"
      title="Say that the task is seen to"
      about={task.text}
      size="xs"
      fields={[REASON]}
      action="Close the task"
      run={async (values) => {
        const params = { path: { task: task.id } };
        return (await api.POST(`${AT}/tasks/{task}/close`, { params, body: { reason: values.reason! } })).data!;
      }}
      done="The task is closed."
      onDone={refresh}
    />
  );
}

/** Books what came in by bank transfer, from the bank's file. */
export function ImportStatement() {
  const refresh = useRefreshPayments();
  const send = async (values: Values, dryRun: boolean) => {
    const body = { name: values.name!, content: values.content!, dry_run: dryRun };
    return (await api.POST(`${AT}/statements`, { body })).data!;
  };
  return (
    <ActionDialog
      label="Import a bank statement"
      title="Import a bank statement"
      about="camt.053, or CSV with a header: date, amount, currency, and payer, reference and id. An entry counts once."
      fields={[
        { name: 'content', label: 'File', kind: 'file', required: true, fileName: 'name' },
        { name: 'name', label: 'Name of the file', required: true },
      ]}
      action="Import"
      check={async (values) => <Brought made={await send(values, true)} />}
      run={(values) => send(values, false)}
      done="The statement was imported."
      onDone={refresh}
    />
  );
}

function Brought({ made }: { made: Schema<'BankStatementObject'> }) {
  return (
    <Facts
      label="What the file would bring"
      facts={[
        { name: 'Entries', value: made.entries },
        { name: 'New', value: made.new_entries },
        { name: 'Pay an invoice', value: made.applied },
        { name: 'Unmatched', value: made.unapplied },
      ]}
    />
  );
}

/** Sends a reminder again of which somebody decides that it has to be. */
export function SendAgain({ reminder }: { reminder: Schema<'ReminderObject'> }) {
  const refresh = useRefreshPayments();
  if (reminder.state !== 'refused' && reminder.state !== 'unknown') return null;
  return (
    <ActionDialog
      label="Send again"
      title="Send the reminder again"
      about={reminder.state === 'unknown' ? 'It was perhaps sent: it may come twice.' : undefined}
      size="xs"
      fields={[REASON]}
      action="Send it again"
      run={async (values) => {
        const params = { path: { reminder: reminder.id } };
        return (await api.POST(`${AT}/reminders/{reminder}/send-again`, { params, body: { reason: values.reason! } }))
          .data!;
      }}
      done="A worker sends it."
      onDone={refresh}
    />
  );
}
