/** Who a tenant's invoices are for: its billing profile. */
import { Alert, Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import { asProblem } from '~/api/problem';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';

import type { Field, Values } from '../components/ActionDialog';
import { PARTY_FIELDS, PartyForm, toBody, VALID_FROM, Versions } from './PartyForm';

type Buyer = Schema<'BuyerObject'>;

const PATH = '/admin/v1/tenants/{tenant}/buyer';
const TREATMENTS = ['auto', 'standard', 'reverse_charge', 'intra_community', 'export', 'zero', 'exempt', 'outside'];
const PROFILES = [
  { value: '', label: 'EN 16931' },
  { value: 'xrechnung', label: 'XRechnung' },
  { value: 'peppol', label: 'Peppol BIS Billing' },
];
const route = getRouteApi('/signed-in/tenants/$tenant');

const FIELDS: readonly Field[] = [
  ...PARTY_FIELDS,
  { name: 'purchase_order', label: 'Purchase order', about: 'Stands on each invoice.' },
  { name: 'buyer_reference', label: 'Buyer reference', about: 'Routes its e-invoices, such as a Leitweg-ID.' },
  {
    name: 'detail',
    label: 'Lines by',
    kind: 'select',
    options: [
      { value: 'model', label: 'model' },
      { value: 'project', label: 'project and model' },
    ],
  },
];

/** What the platform alone sets: it decides what a tenant is asked for, and when. */
const PLATFORM_FIELDS: readonly Field[] = [
  { name: 'seller', label: 'Seller', about: 'Its id.' },
  { name: 'payment_days', label: 'Days to pay', kind: 'number' },
  { name: 'treatment', label: 'Tax treatment', kind: 'select', options: TREATMENTS },
  { name: 'exemption', label: 'Reason of an exemption' },
  { name: 'einvoice', label: 'Profile of e-invoices', kind: 'select', options: PROFILES },
  VALID_FROM,
];

export function BuyerPage() {
  const { tenant } = route.useParams();
  const { id } = route.useLoaderData();
  const me = useMe();
  const buyer = query.useQuery('get', PATH, { params: { path: { tenant } } });
  const missing = isMissing(buyer.error);
  const mayWrite = may(me, 'parties.write', id);
  const onPlatform = may(me, 'parties.write');
  return (
    <Page
      title="Buyer"
      about="Who invoices are made out to. A change applies to documents that are issued from now on."
    >
      {missing ? (
        <>
          <Text>There is no billing profile yet, so no invoice can be drafted.</Text>
          {onPlatform ? (
            <BuyerForm tenant={tenant} onPlatform mayWrite />
          ) : (
            <Text c="dimmed">An operator adds it with the seller.</Text>
          )}
        </>
      ) : (
        <Loaded query={buyer} what="the billing profile" height={400}>
          {(found) => (
            <>
              {found.warning !== '' && (
                <Alert color="yellow" variant="light" role="note">
                  {found.warning}
                </Alert>
              )}
              <Versions versions={found.versions} />
              <BuyerForm
                key={JSON.stringify(found)}
                tenant={tenant}
                buyer={found}
                onPlatform={onPlatform}
                mayWrite={mayWrite}
              />
            </>
          )}
        </Loaded>
      )}
    </Page>
  );
}

function isMissing(error: unknown): boolean {
  return error !== null && asProblem(error).status === 404;
}

interface BuyerFormProps {
  tenant: string;
  buyer?: Buyer;
  onPlatform: boolean;
  mayWrite: boolean;
}

function BuyerForm({ tenant, buyer, onPlatform, mayWrite }: BuyerFormProps) {
  const queries = useQueryClient();
  return (
    <PartyForm
      fields={onPlatform ? [...FIELDS, ...PLATFORM_FIELDS] : FIELDS}
      values={buyer === undefined ? {} : valuesOf(buyer)}
      disabled={!mayWrite}
      save={async (changed, dryRun) => {
        const { payment_days: days, ...rest } = changed;
        const body = {
          ...toBody(rest, ['address']),
          ...(days === undefined ? {} : { payment_days: Number(days) }),
          dry_run: dryRun,
        };
        const { data } = await api.PATCH(PATH, { params: { path: { tenant } }, body });
        if (!dryRun) await queries.invalidateQueries({ queryKey: ['get', PATH] });
        return data!.warning;
      }}
    />
  );
}

function valuesOf(buyer: Buyer): Values {
  const { address, payment_days: days, name, city, country, email, seller, detail, treatment, exemption } = buyer;
  return {
    name,
    city,
    country,
    email,
    seller,
    detail,
    treatment,
    exemption,
    postal_code: buyer.postal_code,
    vat_id: buyer.vat_id,
    endpoint: buyer.endpoint,
    endpoint_scheme: buyer.endpoint_scheme,
    buyer_reference: buyer.buyer_reference,
    einvoice: buyer.einvoice,
    purchase_order: buyer.purchase_order,
    address: address.join('\n'),
    payment_days: String(days),
  };
}
