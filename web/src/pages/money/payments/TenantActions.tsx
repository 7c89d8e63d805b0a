/** How a tenant pays: who collects, its card, money in advance, the automatic top-up. */
import { Button, Group, Stack, Text } from '@mantine/core';

import { api, query, type Schema } from '~/api/client';

import { ActionDialog } from '../components/ActionDialog';
import { uuid7 } from '../components/uuid7';
import { ProviderLink, useRefreshPayments } from './states';

type Connection = Schema<'PaymentConnectionObject'>;
type Automatic = Schema<'AutoTopUpObject'>;

const AT = '/admin/v1/tenants/{tenant}';
const COLLECTIONS = [
  { value: 'charge', label: 'charge the saved card' },
  { value: 'send', label: 'send a page on which it is paid' },
  { value: 'none', label: 'by bank transfer' },
];

/** A page of the provider that was made: it leaves the console, in a window of its own. */
function PageLink({ url, about, close }: { url: string | null; about: string; close: () => void }) {
  return (
    <Stack>
      <Text size="sm">{about}</Text>
      {url === null ? (
        <Text size="sm">The provider does not answer now. The worker asks again; the page will be in the list.</Text>
      ) : (
        <ProviderLink url={url}>Open the provider’s page</ProviderLink>
      )}
      <Group justify="flex-end">
        <Button variant="default" onClick={close}>
          Close
        </Button>
      </Group>
    </Stack>
  );
}

export function TenantActions({ tenant, connection }: { tenant: string; connection: Connection }) {
  const refresh = useRefreshPayments();
  const params = { path: { tenant } };
  if (connection.provider === null) return null;
  const isReady = connection.connected && connection.ready;
  return (
    <>
      {isReady && (
        <>
          <TopUp tenant={tenant} />
          <ActionDialog
            label={connection.card === null ? 'Leave a card' : 'Another card'}
            title="Leave a card"
            about="Cards are left on the provider’s page, and are kept there. Nothing is paid on it."
            action="Make the page"
            run={async () => (await api.POST(`${AT}/payment-connection/card-page`, { params })).data!}
            done="The page was made."
            after={(answer, close) => (
              <PageLink url={(answer as Schema<'PaymentPage'>).url} about="Here the card is left." close={close} />
            )}
          />
          <ActionDialog
            label="Card and address"
            title="Card, address and VAT id at the provider"
            about="The provider’s page changes what it knows of the tenant."
            action="Make the page"
            run={async () => (await api.POST(`${AT}/payment-connection/portal`, { params })).data!}
            done="The page was made."
            after={(answer, close) => (
              <PageLink url={(answer as Schema<'PaymentPage'>).url} about="It can be used for a while." close={close} />
            )}
          />
        </>
      )}
      <ActionDialog
        label={connection.connected ? 'How invoices are paid' : 'Connect'}
        title={connection.connected ? 'How invoices are paid' : 'Connect to the payment provider'}
        about="It holds for invoices that are issued from now on."
        fields={[
          {
            name: 'collection',
            label: 'Invoices are paid',
            kind: 'select',
            options: COLLECTIONS,
            initial: connection.connected ? connection.collection : 'charge',
          },
        ]}
        action={connection.connected ? 'Set' : 'Connect'}
        variant={connection.connected ? 'default' : 'filled'}
        run={async (values) => {
          const body = { collection: values.collection as Connection['collection'] };
          return (await api.PUT(`${AT}/payment-connection`, { params, body })).data!;
        }}
        done={connection.connected ? 'It was set.' : 'The tenant was connected; its customer is being made.'}
        onDone={refresh}
      />
    </>
  );
}

function TopUp({ tenant }: { tenant: string }) {
  const refresh = useRefreshPayments();
  return (
    <ActionDialog
      label="Top up"
      title="Pay in advance"
      about="The money is paid on a page of the provider. It is in the balance when it came."
      variant="filled"
      fields={[{ name: 'amount', label: 'Amount to pay, VAT included', kind: 'amount', required: true }]}
      action="Make the page"
      run={async (values) => {
        const body = { amount: values.amount!, id: uuid7() };
        return (await api.POST(`${AT}/top-ups`, { params: { path: { tenant } }, body })).data!;
      }}
      done="The page was made."
      after={(answer, close) => {
        const { url, amount, currency } = answer as Schema<'TopUpObject'>;
        return <PageLink url={url} about={`Here ${amount} ${currency} are paid.`} close={close} />;
      }}
      onDone={refresh}
    />
  );
}

export function AutomaticAction({ tenant, automatic }: { tenant: string; automatic: Automatic }) {
  const refresh = useRefreshPayments();
  const isSet = automatic.state !== 'off' || automatic.amount !== '0.00';
  return (
    <ActionDialog
      label="Automatic top-up"
      title="Charge the card when money runs low"
      about="Setting it again also forgets declines. At most ten times in 24 hours is a card charged by itself."
      fields={[
        {
          name: 'threshold',
          label: `When less than this is left, in ${automatic.currency}`,
          kind: 'amount',
          required: true,
          initial: isSet ? plain(automatic.threshold) : '10',
        },
        {
          name: 'amount',
          label: `The card is charged, in ${automatic.currency}`,
          kind: 'amount',
          required: true,
          initial: isSet ? automatic.amount : '50.00',
        },
        { name: 'enabled', label: 'Charge the card by itself', kind: 'check', initial: 'yes' },
      ]}
      action="Set"
      run={async (values) => {
        const body = { threshold: values.threshold!, amount: values.amount!, enabled: values.enabled === 'yes' };
        return (await api.PUT(`${AT}/auto-top-up`, { params: { path: { tenant } }, body })).data!;
      }}
      done="The automatic top-up was set."
      onDone={refresh}
    />
  );
}

/** An amount without the zeros behind its decimals. */
function plain(amount: string): string {
  return amount.includes('.') ? amount.replace(/\.?0+$/, '') || '0' : amount;
}

export function RefundTopUp({ tenant, topUp }: { tenant: string; topUp: Schema<'TopUpObject'> }) {
  const refresh = useRefreshPayments();
  return (
    <ActionDialog
      label="Pay back"
      title={`Pay back the top-up of ${topUp.amount} ${topUp.currency}`}
      about="The credit that is left of it is taken first; then the money goes back to the card."
      size="xs"
      danger
      fields={[
        {
          name: 'amount',
          label: `Amount in ${topUp.currency}`,
          kind: 'amount',
          about: 'All that is left of it without one.',
        },
        { name: 'reason', label: 'Reason', required: true, about: 'For the audit log.' },
      ]}
      action="Pay it back"
      run={async (values) => {
        const params = { path: { tenant, top_up: topUp.id } };
        const body = { amount: values.amount || null, reason: values.reason!, id: uuid7() };
        return (await api.POST(`${AT}/top-ups/{top_up}/refunds`, { params, body })).data!;
      }}
      done="The refund was made; a worker sends it."
      onDone={refresh}
    />
  );
}

/** Whether the tenant is reminded of invoices that are overdue. */
export function ReminderAction({ tenant }: { tenant: string }) {
  const refresh = useRefreshPayments();
  const params = { path: { tenant } };
  const policy = query.useQuery('get', `${AT}/reminder-policy`, { params });
  if (policy.data === undefined) return null;
  const { enabled, days } = policy.data;
  return (
    <ActionDialog
      label={enabled ? 'Reminders: on' : 'Reminders: off'}
      title="Reminders of overdue invoices"
      about={`By e-mail with the invoice, ${days.join(', ')} days after an invoice was due.`}
      fields={[
        { name: 'enabled', label: 'Send reminders', kind: 'check', initial: enabled ? 'yes' : '' },
        { name: 'reason', label: 'Reason', required: true, about: 'For the audit log.' },
      ]}
      action="Set"
      run={async (values) => {
        const body = { enabled: values.enabled === 'yes', reason: values.reason! };
        return (await api.PUT(`${AT}/reminder-policy`, { params, body })).data!;
      }}
      done="It was set."
      onDone={refresh}
    />
  );
}
