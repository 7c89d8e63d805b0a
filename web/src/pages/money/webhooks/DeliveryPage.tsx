/** One delivery of a message: each attempt, the body as it was sent, and sending it again. */
import { Button, Code, Stack, Title } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { asProblem } from '~/api/problem';
import { api, query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Facts } from '~/components/Facts';
import { Page } from '~/components/Page';
import { Copied, Instant } from '~/components/values';
import { displayCount } from '~/money/decimal';

import { PageOf } from '../components/PageOf';
import { WordLink } from '../components/WordLink';
import { DeliveryState } from './DeliveryState';
import { instantOf } from './webhooks';

type Attempt = Schema<'AttemptObject'>;

const AT = '/admin/v1/tenants/{tenant}/webhook_deliveries/{name}';
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/webhooks/$endpoint/deliveries/$delivery');

const ATTEMPTS: Column<Attempt>[] = [
  { header: 'Attempt', numeric: true, cell: (attempt) => attempt.number },
  { header: 'At', cell: (attempt) => <Instant at={instantOf(attempt.at)} /> },
  { header: 'Status', numeric: true, cell: (attempt) => attempt.status_code ?? '–' },
  { header: 'Time', numeric: true, cell: (attempt) => `${displayCount(attempt.milliseconds)} ms` },
  { header: 'Error', cell: (attempt) => <span className="wraps">{attempt.error || '–'}</span> },
];

export function DeliveryPage() {
  const { tenant, endpoint, delivery } = route.useParams();
  const { id } = tenantRoute.useLoaderData();
  const mayWrite = may(useMe(), 'webhooks.write', id);
  const queries = useQueryClient();
  const params = { path: { tenant, name: delivery } };
  const found = query.useQuery('get', AT, { params });
  const resend = useMutation({
    mutationFn: async () => (await api.POST(`${AT}/resend`, { params })).data!,
    onSuccess: async () => {
      await queries.invalidateQueries({ predicate: ({ queryKey }) => /webhook_del/.test(String(queryKey[1])) });
      notifications.show({ message: 'It is sent again.' });
    },
    onError: (error) => notifications.show({ color: 'red', message: asProblem(error).message }),
  });
  return (
    <PageOf query={found} title="Delivery">
      {(shown) => (
        <Page
          title={`Message ${shown.topic}`}
          about={
            <>
              Sent to{' '}
              <WordLink to="/tenants/$tenant/webhooks/$endpoint" params={{ tenant, endpoint }}>
                this endpoint
              </WordLink>
              .
            </>
          }
          actions={
            mayWrite && (
              <Button variant="default" loading={resend.isPending} onClick={() => resend.mutate()}>
                Send again
              </Button>
            )
          }
        >
          <Stack gap="xl">
            <Facts
              label="The delivery"
              facts={[
                { name: 'State', value: <DeliveryState delivery={shown} /> },
                { name: 'Attempts', value: shown.attempt_count },
                { name: 'Next attempt', value: <Instant at={instantOf(shown.next_attempt_at)} /> },
                { name: 'Ended', value: <Instant at={instantOf(shown.finished_at)} /> },
                { name: 'Event', value: <Copied text={shown.event_id} /> },
              ]}
            />
            <section aria-labelledby="attempts">
              <Title order={2} id="attempts" mb="xs">
                Attempts
              </Title>
              <DataTable
                caption="Attempts"
                columns={ATTEMPTS}
                rows={shown.attempts ?? []}
                rowKey={(attempt) => String(attempt.number)}
                empty="It was not tried yet."
              />
            </section>
            <section aria-labelledby="body">
              <Title order={2} id="body" mb="xs">
                Body
              </Title>
              <Code block className="wraps" tabIndex={0}>
                {JSON.stringify(shown.body, null, 2)}
              </Code>
            </section>
          </Stack>
        </Page>
      )}
    </PageOf>
  );
}
