/** What a change would change: for whom, from what to what. What is there now is read anew, so it is of this moment. */
import { Stack, Text } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';

import { query } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Instant, Money } from '~/components/values';
import { DifferenceTable } from '~/pages/money/prices/PriceGrid';
import { SheetImpact } from '~/pages/money/prices/SheetImpact';
import { TermsShown } from '~/pages/money/terms/TermsShown';

import { useProjects } from '../useProjects';
import { type Change, creditedLines, fieldsOf, forWhom, raised, sheetOf, termsOf, wordsOf } from './words';

interface WhatChangesProps {
  change: Change;
  /** The name of the tenant that it is for. */
  tenant: string;
  /** With what a month would have cost, where prices change. */
  impact?: boolean;
}

export function WhatChanges({ change, tenant, impact = false }: WhatChangesProps) {
  const sheet = sheetOf(change);
  return (
    <Stack gap="xs">
      <Text size="sm">
        For <strong>{forWhom(change, tenant)}</strong>.
      </Text>
      {sheet === undefined ? <Fields change={change} tenant={tenant} /> : <Prices sheet={sheet} impact={impact} />}
    </Stack>
  );
}

function Fields({ change, tenant }: { change: Change; tenant: string }) {
  const waits = change.state === 'pending';
  switch (change.kind) {
    case 'grant.create':
      return <Grant details={change.details} tenant={change.tenant_id ?? tenant} waits={waits} />;
    case 'credit_line.set':
      return <CreditLine details={change.details} tenant={change.tenant_id ?? tenant} waits={waits} />;
    case 'terms.set':
      return <TermsChange details={change.details} tenant={change.tenant_id ?? tenant} waits={waits} />;
    case 'credit_note.issue':
      return <CreditNote change={change} tenant={change.tenant_id ?? tenant} waits={waits} />;
    case 'platform_setting.set':
      return <Setting name={change.details.name ?? ''} value={change.details.value ?? ''} waits={waits} />;
    default:
      return <FromTo lines={fieldsOf(change.details).map(([what, to]) => ({ what, to }))} waits={false} />;
  }
}

interface Line {
  what: string;
  /** What is there now; a dash where nothing is, or where it may not be seen. */
  from?: ReactNode;
  to: ReactNode;
}

/** What changes, a line each. What was there before a change that has been decided is not there any more. */
function FromTo({ lines, waits }: { lines: Line[]; waits: boolean }) {
  const columns: Column<Line>[] = [
    { header: 'What', cell: (line) => line.what },
    ...(waits ? [{ header: 'Now', cell: (line: Line) => line.from ?? '–' }] : []),
    { header: waits ? 'Then' : 'Asked for', cell: (line) => line.to },
  ];
  return <DataTable caption="What changes" columns={columns} rows={lines} rowKey={(line) => line.what} empty="" />;
}

interface OfTenant {
  details: Change['details'];
  tenant: string;
  waits: boolean;
}

function useBalance(tenant: string, waits: boolean) {
  const path = '/admin/v1/tenants/{tenant}/balance';
  return query.useQuery('get', path, { params: { path: { tenant } } }, { enabled: waits }).data;
}

function Grant({ details, tenant, waits }: OfTenant) {
  const project = useProjects(tenant).find((one) => one.id.endsWith(`_${hexOf(details.project_id)}`));
  const only = details.model ?? (details.project_id === undefined ? undefined : (project?.name ?? details.project_id));
  const balance = useBalance(tenant, waits);
  const before = only === undefined ? balance?.available : balance?.restricted;
  const after = raised(before, details.amount);
  const lines: Line[] = [
    { what: details.kind === 'paid' ? 'Paid in' : 'Given', to: amount(details.amount, details.currency) },
    {
      what: only === undefined ? 'Available balance' : `Restricted balance, for ${only} alone`,
      from: amount(before, balance?.currency),
      to: amount(after, balance?.currency),
    },
    { what: 'Expires', to: details.expires_at === undefined ? 'never' : <Instant at={details.expires_at} /> },
  ];
  return <FromTo lines={waits ? lines : lines.filter(({ what }) => !what.includes('balance'))} waits={waits} />;
}

function CreditLine({ details, tenant, waits }: OfTenant) {
  const balance = useBalance(tenant, waits);
  const line: Line = {
    what: 'Credit line',
    from: amount(balance?.credit_line, balance?.currency),
    to: amount(details.amount, details.currency),
  };
  return <FromTo lines={[line]} waits={waits} />;
}

function TermsChange({ details, tenant, waits }: OfTenant) {
  const period = details.from_period;
  const path = '/admin/v1/tenants/{tenant}/terms';
  const now = query.useQuery('get', path, { params: { path: { tenant }, query: { period } } }, { enabled: waits });
  const line: Line = {
    what: `Terms from ${period} on`,
    from: now.data && <TermsShown terms={now.data.terms} />,
    to: <TermsShown terms={termsOf(details)} />,
  };
  return <FromTo lines={[line]} waits={waits} />;
}

function CreditNote({ change, tenant, waits }: { change: Change; tenant: string; waits: boolean }) {
  const invoice = change.details.invoice_id ?? '';
  const path = '/admin/v1/tenants/{tenant}/invoices/{invoice}';
  const found = query.useQuery('get', path, { params: { path: { tenant, invoice } } });
  const credited = creditedLines(change.details);
  const of = found.data;
  const lines: Line[] = [
    {
      what: 'Invoice',
      to:
        of === undefined ? (
          invoice
        ) : (
          <Link to={`/tenants/${tenant}/invoices/${of.id}` as '/'}>{of.number ?? of.period}</Link>
        ),
    },
    { what: 'Credited', to: change.summary.replace(/^a credit note of | for .*$/g, '') },
    { what: 'Lines', to: credited.length === 0 ? 'all that is left of it' : credited.join(', ') },
    ...(waits && of !== undefined
      ? [{ what: 'Left to pay now', to: <Money amount={of.left} currency={of.currency} /> }]
      : []),
    { what: 'Reason on the note', to: change.details.reason ?? '–' },
  ];
  return <FromTo lines={lines} waits={false} />;
}

function Setting({ name, value, waits }: { name: string; value: string; waits: boolean }) {
  const settings = query.useQuery('get', '/admin/v1/platform/settings', {}, { enabled: waits });
  const from = settings.data?.data.find((one) => one.name === name)?.value;
  return <FromTo lines={[{ what: wordsOf(name), from, to: value }]} waits={waits} />;
}

function Prices({ sheet, impact }: { sheet: number; impact: boolean }) {
  const found = query.useQuery('get', '/admin/v1/prices/sheets/{number}', { params: { path: { number: sheet } } });
  return (
    <Loaded query={found} what="the prices" height={120}>
      {(data) => (
        <>
          <Text size="sm">
            {data.effective_at === null ? 'From its approval on' : <Begins at={data.effective_at} />}
            {data.effective_until !== null && (
              <>
                , until <Instant at={data.effective_until} />
              </>
            )}
            ; in {data.currency} for a million units.
            {data.forced !== null && ` Marked as intended although unusual: ${data.forced}`}
          </Text>
          <DifferenceTable caption={`What changes of the prices of ${data.model}`} rows={data.difference} />
          {impact && <SheetImpact number={sheet} />}
        </>
      )}
    </Loaded>
  );
}

function Begins({ at }: { at: string }) {
  return (
    <>
      From <Instant at={at} /> on
    </>
  );
}

function amount(value: string | undefined, currency: string | undefined): ReactNode {
  return value === undefined ? undefined : <Money amount={value} currency={currency} />;
}

function hexOf(id: string | undefined): string {
  return (id ?? '').replaceAll('-', '');
}
