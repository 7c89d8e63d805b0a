/** What may be done with invoices: each with a check first, where the API can say what would come of it. */
import { Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import type { ReactNode } from 'react';

import { api, isPending, type Schema } from '~/api/client';
import { Facts } from '~/components/Facts';
import { Money } from '~/components/values';
import { monthOf, useToday } from '~/time/days';

import { ActionDialog, type Field, type Values } from '../components/ActionDialog';
import { uuid7 } from '../components/uuid7';

type Invoice = Schema<'InvoiceObject'>;
type Check = Schema<'DocumentCheck'>;

const TENANT = '/admin/v1/tenants/{tenant}/invoices';
const AT = '/admin/v1/tenants/{tenant}/invoices/{invoice}';

/** Everything that shows invoices is read again. */
function useRefresh(): () => void {
  const queries = useQueryClient();
  return () => {
    const money = /invoices|balance|statement|grants/;
    void queries.invalidateQueries({ predicate: ({ queryKey }) => money.test(String(queryKey[1])) });
  };
}

/** The result of a dry run of a draft or a credit note. */
function WouldBe({ check }: { check: Check }) {
  if (check.currency === null || check.net === null) return <Text size="sm">There is nothing to bill.</Text>;
  const amount = (value: string | null): ReactNode =>
    value === null ? '–' : <Money amount={value} currency={check.currency!} />;
  return (
    <>
      <Facts
        label="What the document would be"
        facts={[
          { name: 'Lines', value: check.lines },
          { name: 'Net', value: amount(check.net) },
          { name: 'Tax', value: amount(check.tax) },
          { name: 'Total', value: amount(check.gross) },
          { name: 'Paid in advance', value: amount(check.prepaid) },
          { name: 'To pay', value: amount(check.payable) },
        ]}
      />
      {check.warnings.map((warning) => (
        <Text key={warning} size="sm">
          {warning}
        </Text>
      ))}
    </>
  );
}

/** The invoice as it would be. */
function After({ invoice }: { invoice: Invoice }) {
  const { currency } = invoice;
  return (
    <Facts
      label="The invoice as it would be"
      facts={[
        { name: 'Number', value: invoice.number ?? '–' },
        { name: 'State', value: invoice.state.replace('_', ' ') },
        { name: 'Issued', value: invoice.issued ?? '–' },
        { name: 'Total', value: <Money amount={invoice.gross} currency={currency} /> },
        { name: 'Paid', value: <Money amount={invoice.paid} currency={currency} /> },
        { name: 'Credited', value: <Money amount={invoice.credited} currency={currency} /> },
        { name: 'To pay', value: <Money amount={invoice.left} currency={currency} /> },
      ]}
    />
  );
}

export function DraftInvoice({ tenant }: { tenant: string }) {
  const refresh = useRefresh();
  const post = async (values: Values, dryRun: boolean) =>
    (await api.POST(TENANT, { params: { path: { tenant } }, body: { period: values.period!, dry_run: dryRun } })).data!;
  return (
    <ActionDialog
      label="Draft an invoice"
      title="Draft an invoice"
      about="An earlier draft of the month is replaced. The tenant does not see drafts."
      fields={[{ name: 'period', label: 'Month', kind: 'month', required: true, initial: monthOf(useToday(), 1) }]}
      action="Draft"
      variant="filled"
      check={async (values) => <WouldBe check={(await post(values, true)) as Check} />}
      run={(values) => post(values, false)}
      done="The invoice was drafted."
      onDone={refresh}
    />
  );
}

const REASON: Field = { name: 'reason', label: 'Reason', required: true, about: 'For the audit log.' };

/** All that may be done with one document in its state. */
export function InvoiceActions({ tenant, invoice }: { tenant: string; invoice: Schema<'InvoiceDetails'> }) {
  const refresh = useRefresh();
  const params = { path: { tenant, invoice: invoice.id } };
  if (invoice.kind !== 'invoice') return null;
  const { state } = invoice;
  const untouched = invoice.payments.length === 0 && invoice.credit_notes.length === 0;
  const isOpen = state === 'finalized' || state === 'partially_paid' || state === 'uncollectible';
  const finalize = async (values: Values, dryRun: boolean) =>
    (await api.POST(`${AT}/finalize`, { params, body: { issued: values.issued || null, dry_run: dryRun } })).data!;
  const pay = async (values: Values, dryRun: boolean) =>
    (
      await api.POST(`${AT}/payments`, {
        params,
        body: { reference: values.reference!, amount: values.amount || null, dry_run: dryRun },
      })
    ).data!;
  const bodyOf = (values: Values, dryRun: boolean) => ({ reason: values.reason!, dry_run: dryRun });
  const cancel = async (values: Values, dryRun: boolean) =>
    (await api.POST(`${AT}/void`, { params, body: bodyOf(values, dryRun) })).data!;
  const writeOff = async (values: Values, dryRun: boolean) =>
    (await api.POST(`${AT}/uncollectible`, { params, body: bodyOf(values, dryRun) })).data!;
  const relieve = async (values: Values, dryRun: boolean) =>
    (await api.POST(`${AT}/vat-relief`, { params, body: bodyOf(values, dryRun) })).data!;
  return (
    <>
      {state === 'draft' && (
        <ActionDialog
          label="Finalize"
          title="Finalize the draft"
          about="It gets the next number of its series and can never be changed again; its month must be closed."
          fields={[{ name: 'issued', label: 'Issue date', kind: 'date', about: 'Today without one.' }]}
          action="Finalize"
          variant="filled"
          check={async (values) => <After invoice={await finalize(values, true)} />}
          run={(values) => finalize(values, false)}
          done="The invoice was finalized."
          onDone={refresh}
        />
      )}
      {isOpen && (
        <ActionDialog
          label="Record a payment"
          title={`Record a payment of ${invoice.number}`}
          fields={[
            {
              name: 'reference',
              label: 'Reference of the bank',
              required: true,
              about: 'Used again, the payment counts once.',
            },
            {
              name: 'amount',
              label: `Amount in ${invoice.currency}`,
              kind: 'amount',
              about: `All that is left (${invoice.left}) without one.`,
            },
          ]}
          action="Record"
          check={async (values) => <After invoice={await pay(values, true)} />}
          run={(values) => pay(values, false)}
          done="The payment was recorded."
          onDone={refresh}
        />
      )}
      {state !== 'draft' && state !== 'void' && <CreditNote tenant={tenant} invoice={invoice} refresh={refresh} />}
      {state === 'finalized' && untouched && (
        <ActionDialog
          label="Void"
          title={`Void ${invoice.number}`}
          about="Its number stays in the series. The month can be invoiced again. This cannot be undone."
          fields={[REASON]}
          action="Void the invoice"
          danger
          check={async (values) => <After invoice={await cancel(values, true)} />}
          run={(values) => cancel(values, false)}
          done="The invoice was voided."
          onDone={refresh}
        />
      )}
      {(state === 'finalized' || state === 'partially_paid') && (
        <ActionDialog
          label="Write off"
          title={`Write off ${invoice.number}`}
          about="What is left is booked as bad debt. The tenant still owes it, and a payment takes the loss back."
          fields={[REASON]}
          action="Write off"
          danger
          check={async (values) => <After invoice={await writeOff(values, true)} />}
          run={(values) => writeOff(values, false)}
          done="The invoice was written off."
          onDone={refresh}
        />
      )}
      {state === 'uncollectible' && (
        <ActionDialog
          label="Claim VAT back"
          title={`Claim back the VAT of ${invoice.number}`}
          about="The VAT on what is left is booked as claimed back as of today, where the law allows it."
          fields={[REASON]}
          action="Book it"
          check={async (values) => <After invoice={await relieve(values, true)} />}
          run={(values) => relieve(values, false)}
          done="The VAT was booked as claimed back."
          onDone={refresh}
        />
      )}
    </>
  );
}

const LINE = /^\s*(\d+)\s*(?:=\s*(\S+))?\s*$/;

/** The lines of a text such as `4 = 5.00`, one a row; none for an empty text. Throws Error for another text. */
export function parseCreditedLines(text: string): Schema<'CreditedLine'>[] | null {
  const rows = text.split('\n').filter((row) => row.trim() !== '');
  if (rows.length === 0) return null;
  return rows.map((row) => {
    const match = LINE.exec(row);
    if (match === null) throw new Error(`“${row.trim()}” is no line such as 4 or 4 = 5.00.`);
    return { line: Number(match[1]), amount: match[2] ?? null };
  });
}

interface CreditNoteProps {
  tenant: string;
  invoice: Schema<'InvoiceDetails'>;
  refresh: () => void;
}

function CreditNote({ tenant, invoice, refresh }: CreditNoteProps) {
  const fields: Field[] = [
    { name: 'reason', label: 'Reason', required: true, about: 'It stands on the credit note.' },
    {
      name: 'lines',
      label: 'Lines',
      kind: 'lines',
      about: 'One a row: the number of a line, or 4 = 5.00 for a part of it. Empty: all that is left of the invoice.',
    },
    {
      name: 'request',
      label: 'Your id of it',
      required: true,
      initial: uuid7(),
      about: 'Used again, one credit note is made.',
    },
    { name: 'issued', label: 'Issue date', kind: 'date', about: 'Today without one.' },
  ];
  const post = async (values: Values, dryRun: boolean) => {
    const body = {
      reason: values.reason!,
      request: values.request!,
      lines: parseCreditedLines(values.lines!),
      issued: values.issued || null,
      dry_run: dryRun,
    };
    return (await api.POST(`${AT}/credit-notes`, { params: { path: { tenant, invoice: invoice.id } }, body })).data!;
  };
  return (
    <ActionDialog
      label="Credit"
      title={`Credit ${invoice.number}`}
      about="A credit note with a number of its own lowers what is to be paid; the rest goes to the balance."
      fields={fields}
      action="Make the credit note"
      check={async (values) => {
        const answer = await post(values, true);
        return isPending(answer) ? (
          'It would wait for the approval of a second person.'
        ) : (
          <WouldBe check={answer as Check} />
        );
      }}
      run={(values) => post(values, false)}
      done="The credit note was made."
      onDone={refresh}
    />
  );
}
