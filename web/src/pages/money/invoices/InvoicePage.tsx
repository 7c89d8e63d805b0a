/** One invoice or credit note: its amounts, lines down to their requests, payments, credit notes, files, verification. */
import { Alert, Button, Group, Menu, Stack, Title } from '@mantine/core';
import { IconDownload } from '@tabler/icons-react';
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { download, query, type Schema } from '~/api/client';
import { DataTable } from '~/components/DataTable';
import { type Fact, Facts } from '~/components/Facts';
import { Page } from '~/components/Page';
import { Copied, Instant, Money } from '~/components/values';

import { PageOf } from '../components/PageOf';
import { WordLink } from '../components/WordLink';
import { CollectionSection } from '../payments/CollectionSection';
import { InvoiceActions } from './InvoiceActions';
import { InvoiceLines } from './InvoiceLines';
import { InvoiceStateBadge, invoiceColumns } from './InvoiceTable';
import { VerifyPanel } from './VerifyPanel';

type Details = Schema<'InvoiceDetails'>;

const TITLES = { invoice: 'Invoice', advance: 'Advance-payment invoice', credit_note: 'Credit note' };
const AT = '/admin/v1/tenants/{tenant}/invoices/{invoice}';
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/invoices/$invoice');

export function InvoicePage() {
  const { tenant, invoice } = route.useParams();
  const found = query.useQuery('get', AT, { params: { path: { tenant, invoice } } });
  return (
    <PageOf query={found} title="Invoice">
      {(details) => <InvoiceShown key={details.id} tenant={tenant} invoice={details} />}
    </PageOf>
  );
}

function InvoiceShown({ tenant, invoice }: { tenant: string; invoice: Details }) {
  const { id } = tenantRoute.useLoaderData();
  const opened = route.useSearch();
  const mayWrite = may(useMe(), 'invoices.write', id);
  const kind = TITLES[invoice.kind];
  return (
    <Page
      title={invoice.number === null ? `Draft of ${invoice.period}` : `${kind} ${invoice.number}`}
      about={`${invoice.seller_name} to ${invoice.buyer_name}, for ${invoice.service_from} to ${invoice.service_until}.`}
      actions={
        <>
          <Files tenant={tenant} invoice={invoice} />
          {mayWrite && <InvoiceActions tenant={tenant} invoice={invoice} />}
        </>
      }
    >
      <Stack gap="xl">
        <Notices tenant={tenant} invoice={invoice} />
        <Facts label="Amounts" facts={factsOf(invoice)} />
        <CollectionSection tenant={tenant} tenantId={id} invoice={invoice} />
        <VerifyPanel tenant={tenant} invoice={invoice} />
        <InvoiceLines tenant={tenant} invoice={invoice} opened={opened} />
        <Taxes invoice={invoice} />
        {invoice.kind === 'invoice' && <Settlements tenant={tenant} invoice={invoice} />}
      </Stack>
    </Page>
  );
}

function factsOf(invoice: Details): Fact[] {
  const { currency } = invoice;
  const isVoid = invoice.state === 'void';
  const amount = (value: string) => <Money amount={value} currency={currency} />;
  return [
    { name: 'State', value: <InvoiceStateBadge invoice={invoice} /> },
    { name: 'Issued', value: invoice.issued ?? '–' },
    { name: 'Due', value: invoice.due ?? '–' },
    {
      name: 'Period',
      value: invoice.period,
      about: invoice.state === 'draft' ? 'May still change.' : 'Complete: closed.',
    },
    { name: 'Net', value: amount(invoice.net) },
    { name: 'Tax', value: amount(invoice.tax) },
    { name: 'Total', value: isVoid ? <s>{amount(invoice.gross)}</s> : amount(invoice.gross) },
    { name: 'Paid in advance', value: amount(invoice.prepaid) },
    { name: 'Payable', value: amount(invoice.payable) },
    { name: 'Paid', value: amount(invoice.paid) },
    { name: 'Credited', value: amount(invoice.credited) },
    { name: 'To pay', value: amount(invoice.left) },
    { name: 'Seller', value: invoice.seller },
    ...(invoice.reason ? [{ name: 'Reason', value: invoice.reason }] : []),
    ...(invoice.sha256 === null
      ? []
      : [{ name: 'SHA-256', value: <Copied text={invoice.sha256} label="the SHA-256" /> }]),
  ];
}

/** What a reader must know first: void with its successor, a draft, what a credit note reduces. */
function Notices({ tenant, invoice }: { tenant: string; invoice: Details }) {
  if (invoice.state === 'void') return <VoidNotice tenant={tenant} invoice={invoice} />;
  if (invoice.corrects !== null) {
    return (
      <Alert variant="outline" color="gray" role="note">
        It reduces{' '}
        <WordLink to="/tenants/$tenant/invoices/$invoice" params={{ tenant, invoice: invoice.corrects }}>
          this invoice
        </WordLink>
        .
      </Alert>
    );
  }
  if (invoice.state !== 'draft') return null;
  return (
    <Alert variant="outline" color="gray" role="note">
      A draft: it has no number, may change, and the tenant does not see it.
    </Alert>
  );
}

function VoidNotice({ tenant, invoice }: { tenant: string; invoice: Details }) {
  const { data } = query.useQuery('get', '/admin/v1/tenants/{tenant}/invoices', {
    params: { path: { tenant }, query: { period: invoice.period, kind: 'invoice' } },
  });
  const successor = data?.data.find((other) => other.state !== 'void');
  return (
    <Alert variant="outline" color="gray" title="Void" role="note">
      <s>{invoice.number}</s> counts for nothing.{' '}
      {successor === undefined ? (
        'Its month was not invoiced again yet.'
      ) : (
        <>
          Its month was invoiced again:{' '}
          <WordLink to="/tenants/$tenant/invoices/$invoice" params={{ tenant, invoice: successor.id }}>
            {successor.number ?? `draft of ${successor.period}`}
          </WordLink>
          .
        </>
      )}
    </Alert>
  );
}

function Files({ tenant, invoice }: { tenant: string; invoice: Details }) {
  const at = `/admin/v1/tenants/${encodeURIComponent(tenant)}/invoices/${invoice.id}`;
  return (
    <Menu>
      <Menu.Target>
        <Button variant="default" leftSection={<IconDownload size={16} aria-hidden />}>
          Download
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item onClick={() => void download(`${at}/pdf`)}>PDF/A</Menu.Item>
        {invoice.number !== null && (
          <>
            <Menu.Item onClick={() => void download(`${at}/ubl`)}>E-invoice, UBL</Menu.Item>
            <Menu.Item onClick={() => void download(`${at}/cii`)}>E-invoice, CII</Menu.Item>
          </>
        )}
        <Menu.Item onClick={() => void download(`${at}/json`)}>JSON, as it was sealed</Menu.Item>
        <Menu.Item onClick={() => void download(`${at}/csv`)}>CSV of the lines</Menu.Item>
        <Menu.Item onClick={() => void download(`${at}/bundle`)}>All of them (ZIP)</Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}

function Taxes({ invoice }: { invoice: Details }) {
  const { currency } = invoice;
  return (
    <section aria-labelledby="taxes">
      <Title order={2} id="taxes" mb="xs">
        Tax
      </Title>
      <DataTable
        caption="Tax by category and rate"
        columns={[
          { header: 'Category', cell: (tax) => tax.category, total: 'Sum' },
          { header: 'Rate', numeric: true, cell: (tax) => `${tax.rate} %` },
          { header: 'Reason', cell: (tax) => tax.reason },
          {
            header: 'Net',
            numeric: true,
            cell: (tax) => <Money amount={tax.net} />,
            total: <Money amount={invoice.net} currency={currency} />,
          },
          {
            header: 'Tax',
            numeric: true,
            cell: (tax) => <Money amount={tax.tax} />,
            total: <Money amount={invoice.tax} currency={currency} />,
          },
        ]}
        rows={invoice.taxes}
        rowKey={(tax) => `${tax.category} ${tax.rate} ${tax.reason}`}
        empty="It has no tax."
      />
    </section>
  );
}

function Settlements({ tenant, invoice }: { tenant: string; invoice: Details }) {
  const { currency } = invoice;
  return (
    <>
      <section aria-labelledby="payments">
        <Title order={2} id="payments" mb="xs">
          Payments
        </Title>
        <DataTable
          caption="Payments"
          columns={[
            { header: 'Reference', cell: (payment) => payment.reference, total: 'Paid' },
            { header: 'At', cell: (payment) => <Instant at={payment.at} /> },
            {
              header: 'Amount',
              numeric: true,
              cell: (payment) => <Money amount={payment.amount} />,
              total: <Money amount={invoice.paid} currency={currency} />,
            },
          ]}
          rows={invoice.payments}
          rowKey={(payment) => payment.id}
          empty="Nothing was paid yet."
        />
      </section>
      <section aria-labelledby="credit-notes">
        <Group mb="xs">
          <Title order={2} id="credit-notes">
            Credit notes
          </Title>
        </Group>
        <DataTable
          caption="Credit notes"
          columns={invoiceColumns(() => tenant)}
          rows={invoice.credit_notes}
          rowKey={(note) => note.id}
          empty="There are none."
        />
      </section>
    </>
  );
}
