/** Who invoices are from: the legal entities that sell, with their number series and VAT rates. */
import { Accordion, Alert, Group, Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, isPending, query, type Schema, WAITS } from '~/api/client';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';

import { ActionDialog, type Field, type Values } from '../components/ActionDialog';
import { PARTY_FIELDS, PartyForm, rowsOf, toBody, VALID_FROM, Versions } from './PartyForm';

type Seller = Schema<'SellerObject'>;

const PATH = '/admin/v1/sellers';
const AT = '/admin/v1/sellers/{seller}';

const FIELDS: readonly Field[] = [
  ...PARTY_FIELDS,
  { name: 'registration', label: 'Registration', about: 'In the register of companies.' },
  { name: 'payment', label: 'How to pay', kind: 'lines', about: 'One line a row, such as IBAN and BIC.' },
  { name: 'iban', label: 'IBAN', about: 'The account for credit transfers, on e-invoices.' },
  { name: 'bic', label: 'BIC' },
  { name: 'contact', label: 'Contact', about: 'Whom to ask about an invoice.' },
  { name: 'phone', label: 'Telephone' },
  { name: 'currency', label: 'Currency', about: 'Three letters (ISO 4217).' },
  { name: 'series', label: 'Series of invoices' },
  { name: 'credit_series', label: 'Series of credit notes' },
  { name: 'number_format', label: 'Format of numbers', about: 'Such as {series}-{year}-{n:06}.' },
  {
    name: 'rates',
    label: 'VAT rates',
    kind: 'lines',
    about: 'One country a row: DE = 19.00. Empty: no VAT is charged.',
  },
];
const CHANGE_FIELDS: readonly Field[] = [
  VALID_FROM,
  { name: 'reason', label: 'Reason of the change', about: 'For the audit log.' },
];

export function SellersPage() {
  const mayWrite = may(useMe(), 'sellers.write');
  const sellers = query.useQuery('get', PATH, { params: { query: { limit: 100 } } });
  const [opened, setOpened] = useState<string | null>(null);
  return (
    <Page
      title="Sellers"
      about="Legal entities with a gapless number series each. Documents that were issued keep what they say."
      actions={mayWrite && <NewSeller onDone={setOpened} />}
    >
      <Loaded query={sellers} what="the sellers">
        {({ data }) =>
          data.length === 0 ? (
            <Text c="dimmed">There is no seller yet, so no invoice can be made.</Text>
          ) : (
            <Accordion value={opened ?? data[0]!.id} onChange={setOpened} variant="separated">
              {data.map((seller) => (
                <Accordion.Item key={seller.id} value={seller.id}>
                  <Accordion.Control>
                    <Group gap="xs">
                      <strong>{seller.name}</strong> {seller.id}, {seller.country}, {seller.currency}, series{' '}
                      {seller.series}
                    </Group>
                  </Accordion.Control>
                  <Accordion.Panel>
                    {seller.warning !== '' && (
                      <Alert color="yellow" variant="light" role="note" mb="sm">
                        {seller.warning}
                      </Alert>
                    )}
                    <Versions versions={seller.versions} />
                    <SellerForm key={JSON.stringify(seller)} seller={seller} mayWrite={mayWrite} />
                  </Accordion.Panel>
                </Accordion.Item>
              ))}
            </Accordion>
          )
        }
      </Loaded>
    </Page>
  );
}

const RATE = /^([A-Z]{2})\s*=\s*([\d.]+)\s*%?$/;

/** VAT rates by country of rows such as `DE = 19.00`. Throws Error for another row. */
export function parseRates(text: string): Record<string, string> {
  return Object.fromEntries(
    rowsOf(text).map((row) => {
      const match = RATE.exec(row);
      if (match === null) throw new Error(`“${row}” is no VAT rate such as DE = 19.00.`);
      return [match[1]!, match[2]!];
    }),
  );
}

function bodyOf(changed: Values, dryRun: boolean): Schema<'SellerChange'> {
  const { rates, ...rest } = changed;
  return {
    ...toBody(rest, ['address', 'payment']),
    ...(rates === undefined ? {} : { rates: parseRates(rates) }),
    dry_run: dryRun,
  };
}

function SellerForm({ seller, mayWrite }: { seller: Seller; mayWrite: boolean }) {
  const queries = useQueryClient();
  const { address, payment, rates, name, city, country, email, registration, currency, series } = seller;
  const values: Values = {
    name,
    city,
    country,
    email,
    registration,
    currency,
    series,
    postal_code: seller.postal_code,
    vat_id: seller.vat_id,
    endpoint: seller.endpoint,
    endpoint_scheme: seller.endpoint_scheme,
    iban: seller.iban,
    bic: seller.bic,
    contact: seller.contact,
    phone: seller.phone,
    credit_series: seller.credit_series,
    number_format: seller.number_format,
    address: address.join('\n'),
    payment: payment.join('\n'),
    rates: Object.entries(rates)
      .map(([where, rate]) => `${where} = ${rate}`)
      .join('\n'),
  };
  return (
    <PartyForm
      fields={[...FIELDS, ...CHANGE_FIELDS]}
      values={values}
      disabled={!mayWrite}
      save={async (changed, dryRun) => {
        const params = { path: { seller: seller.id } };
        const { data } = await api.PATCH(AT, { params, body: bodyOf(changed, dryRun) });
        if (!dryRun) await queries.invalidateQueries({ queryKey: ['get', PATH] });
        return isPending(data) ? WAITS : data!.warning;
      }}
    />
  );
}

function NewSeller({ onDone }: { onDone: (id: string) => void }) {
  const queries = useQueryClient();
  const patch = async ({ id, ...rest }: Values, dryRun: boolean) => {
    const given = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== ''));
    return (await api.PATCH(AT, { params: { path: { seller: id! } }, body: bodyOf(given, dryRun) })).data!;
  };
  return (
    <ActionDialog
      label="New seller"
      title="New seller"
      fields={[
        { name: 'id', label: 'Id', required: true, about: 'A short name of its own, such as acme-eu; it stays.' },
        ...FIELDS,
      ]}
      action="Add"
      variant="filled"
      check={async (values) => {
        const answer = await patch(values, true);
        return isPending(answer) ? WAITS : `It would be accepted. ${answer.warning}`;
      }}
      run={(values) => patch(values, false)}
      done="The seller was added."
      onDone={(answer) => {
        if (!isPending(answer)) onDone((answer as Seller).id);
        void queries.invalidateQueries({ queryKey: ['get', PATH] });
      }}
    />
  );
}
