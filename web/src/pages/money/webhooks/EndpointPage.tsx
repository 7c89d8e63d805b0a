/** One webhook endpoint: its secret, what it was sent, and trying it. */
import { Button, Stack, Title } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { getRouteApi, useNavigate } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { asProblem } from '~/api/problem';
import { api, query, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Facts } from '~/components/Facts';
import { SecretOnce } from '~/components/forms';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Copied, Instant } from '~/components/values';

import { ActionDialog } from '../components/ActionDialog';
import { PageOf } from '../components/PageOf';
import { WordLink } from '../components/WordLink';
import { DeliveryState } from './DeliveryState';
import { EndpointState, topicsOf } from './WebhooksPage';
import { instantOf } from './webhooks';

type Endpoint = Schema<'EndpointObject'>;
type Delivery = Schema<'DeliveryObject'>;

const LIST = '/admin/v1/tenants/{tenant}/webhooks';
const AT = '/admin/v1/tenants/{tenant}/webhooks/{name}';
const DELIVERIES = '/admin/v1/tenants/{tenant}/webhook_deliveries';
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/webhooks/$endpoint');

export function EndpointPage() {
  const { tenant, endpoint } = route.useParams();
  const found = query.useQuery('get', AT, { params: { path: { tenant, name: endpoint } } });
  return (
    <PageOf query={found} title="Webhook endpoint">
      {(shown) => <EndpointShown tenant={tenant} endpoint={shown} />}
    </PageOf>
  );
}

function EndpointShown({ tenant, endpoint }: { tenant: string; endpoint: Endpoint }) {
  const { id } = tenantRoute.useLoaderData();
  const mayWrite = may(useMe(), 'webhooks.write', id);
  const columns: Column<Delivery>[] = [
    {
      header: 'Message',
      cell: (delivery) => (
        <WordLink
          to="/tenants/$tenant/webhooks/$endpoint/deliveries/$delivery"
          params={{ tenant, endpoint: endpoint.id, delivery: delivery.id }}
        >
          {delivery.topic}
        </WordLink>
      ),
    },
    { header: 'State', cell: (delivery) => <DeliveryState delivery={delivery} /> },
    { header: 'Attempts', numeric: true, cell: (delivery) => delivery.attempt_count },
    { header: 'Last answer', cell: (delivery) => delivery.last_status_code ?? (delivery.last_error || '–') },
    { header: 'Sent', cell: (delivery) => <Instant at={instantOf(delivery.created_at)} /> },
    { header: 'Next attempt', cell: (delivery) => <Instant at={instantOf(delivery.next_attempt_at)} /> },
  ];
  return (
    <Page
      title="Webhook endpoint"
      about={endpoint.description || undefined}
      actions={mayWrite && <EndpointActions tenant={tenant} endpoint={endpoint} />}
    >
      <Stack gap="xl">
        <Facts
          label="The endpoint"
          facts={[
            { name: 'URL', value: endpoint.url },
            { name: 'State', value: <EndpointState endpoint={endpoint} /> },
            { name: 'Topics', value: topicsOf(endpoint) },
            { name: 'Id', value: <Copied text={endpoint.id} /> },
            {
              name: 'The old secret also signs until',
              value: <Instant at={instantOf(endpoint.previous_secret_until)} />,
            },
          ]}
        />
        <section aria-labelledby="deliveries">
          <Title order={2} id="deliveries" mb="xs">
            Deliveries
          </Title>
          <PagedTable
            caption={`Deliveries to ${endpoint.url}`}
            what="the deliveries"
            columns={columns}
            empty="Nothing was sent to it yet. Send a test message to try it."
            queryKey={['get', DELIVERIES, tenant, endpoint.id]}
            read={async (after, signal) => {
              const params = { path: { tenant }, query: { endpoint_id: endpoint.id, after, limit: 50 } };
              return (await api.GET(DELIVERIES, { params, signal })).data!;
            }}
          />
        </section>
      </Stack>
    </Page>
  );
}

function EndpointActions({ tenant, endpoint }: { tenant: string; endpoint: Endpoint }) {
  const queries = useQueryClient();
  const navigate = useNavigate();
  const params = { path: { tenant, name: endpoint.id } };
  const refresh = (): void => {
    void queries.invalidateQueries({ predicate: ({ queryKey }) => /webhook/.test(String(queryKey[1])) });
  };
  const test = useMutation({
    mutationFn: async () => (await api.POST(`${AT}/test`, { params })).data!,
    onSuccess: (delivery) => {
      refresh();
      void navigate({
        to: '/tenants/$tenant/webhooks/$endpoint/deliveries/$delivery',
        params: { tenant, endpoint: endpoint.id, delivery: delivery.id },
      });
    },
    onError: (error) => notifications.show({ color: 'red', message: asProblem(error).message }),
  });
  const enable = useMutation({
    mutationFn: async () => (await api.POST(`${AT}/enable`, { params })).data!,
    onSuccess: refresh,
    onError: (error) => notifications.show({ color: 'red', message: asProblem(error).message }),
  });
  return (
    <>
      {endpoint.status !== 'enabled' && (
        <Button variant="default" loading={enable.isPending} onClick={() => enable.mutate()}>
          Enable
        </Button>
      )}
      <Button variant="default" loading={test.isPending} onClick={() => test.mutate()}>
        Send a test message
      </Button>
      <ActionDialog
        label="Rotate the secret"
        title="Rotate the secret"
        about="A new secret signs from now on. The old one also signs for a while, so that nothing is lost meanwhile."
        fields={[
          { name: 'overlap_s', label: 'Seconds in which both sign', kind: 'number', required: true, initial: '86400' },
        ]}
        action="Rotate"
        run={async (values) => {
          const body = { overlap_s: wholeSeconds(values.overlap_s!) };
          return (await api.POST(`${AT}/rotate`, { params, body })).data!;
        }}
        done="The secret was rotated."
        after={(answer, close) => (
          <SecretOnce
            secret={(answer as Endpoint).secret ?? ''}
            variable="TURNPIKE_WEBHOOK_SECRET"
            file="turnpike-webhook.env"
            done={close}
          />
        )}
        onDone={refresh}
      />
      <ActionDialog
        label="Remove"
        title="Remove the endpoint"
        about={`${endpoint.url} gets no more messages. What waits for it is not sent. This cannot be undone.`}
        action="Remove"
        danger
        run={async () => (await api.DELETE(AT, { params })).data!}
        done="The endpoint was removed."
        onDone={() => {
          void queries.invalidateQueries({ queryKey: ['get', LIST] });
          void navigate({ to: '/tenants/$tenant/webhooks', params: { tenant } });
        }}
      />
    </>
  );
}

function wholeSeconds(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new Error(`“${text}” is no number of seconds.`);
  return Number(text);
}
