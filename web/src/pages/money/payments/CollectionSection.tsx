/** Where the collection of an invoice stands: at the provider, and whether it is pushed again. */
import { Group, Title } from '@mantine/core';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import { type Fact, Facts } from '~/components/Facts';
import { Loaded } from '~/components/Loaded';

import { ActionDialog } from '../components/ActionDialog';
import { collectionState, ProviderLink, useRefreshPayments } from './states';

const AT = '/admin/v1/tenants/{tenant}/invoices/{invoice}';

interface CollectionSectionProps {
  tenant: string;
  tenantId: string;
  invoice: Schema<'InvoiceDetails'>;
}

export function CollectionSection({ tenant, tenantId, invoice }: CollectionSectionProps) {
  const me = useMe();
  const mayRead = may(me, 'payments.read', tenantId);
  const params = { path: { tenant, invoice: invoice.id } };
  const collection = query.useQuery('get', `${AT}/collection`, { params }, { enabled: mayRead });
  if (!mayRead || invoice.state === 'draft') return null;
  const again = collection.data?.state === 'differs' || collection.data?.state === 'refused';
  return (
    <section aria-labelledby="collection">
      <Group justify="space-between" mb="xs">
        <Title order={2} id="collection">
          Collection
        </Title>
        {again && may(me, 'invoices.write', tenantId) && <PushAgain tenant={tenant} invoice={invoice} />}
      </Group>
      <Loaded query={collection} what="the collection" height={90}>
        {(found) => <Facts label="Collection" facts={factsOf(found, invoice)} />}
      </Loaded>
    </section>
  );
}

function factsOf(collection: Schema<'CollectionObject'>, invoice: Schema<'InvoiceDetails'>): Fact[] {
  const facts: Fact[] = [
    {
      name: 'At the payment provider',
      value: collectionState(collection.state),
      about:
        collection.problem ??
        (collection.provider === null ? 'It is paid by bank transfer, or from the balance.' : collection.provider),
    },
  ];
  if (collection.url !== null) {
    const isOpen = invoice.state === 'finalized' || invoice.state === 'partially_paid';
    facts.push({
      name: 'Page',
      value: <ProviderLink url={collection.url}>{isOpen ? 'Pay it there' : 'Show it there'}</ProviderLink>,
    });
  }
  return facts;
}

function PushAgain({ tenant, invoice }: { tenant: string; invoice: Schema<'InvoiceDetails'> }) {
  const refresh = useRefreshPayments();
  return (
    <ActionDialog
      label="Push again"
      title={`Push ${invoice.number} again`}
      about="It is made anew at the provider, and compared before it is final there."
      fields={[{ name: 'reason', label: 'Reason', required: true, about: 'For the audit log.' }]}
      action="Push it again"
      run={async (values) => {
        const params = { path: { tenant, invoice: invoice.id } };
        return (await api.POST(`${AT}/push-again`, { params, body: { reason: values.reason! } })).data!;
      }}
      done="A worker pushes it again."
      onDone={refresh}
    />
  );
}
