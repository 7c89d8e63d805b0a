/** The endpoints that get a tenant's messages, signed. */
import { Code, Stack, Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { SecretOnce } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Instant, State } from '~/components/values';

import { ActionDialog } from '../components/ActionDialog';
import { WordLink } from '../components/WordLink';
import { instantOf, TOPICS } from './webhooks';

type Endpoint = Schema<'EndpointObject'>;

const PATH = '/admin/v1/tenants/{tenant}/webhooks';
const route = getRouteApi('/signed-in/tenants/$tenant');

export function WebhooksPage() {
  const { tenant } = route.useParams();
  const { id } = route.useLoaderData();
  const mayWrite = may(useMe(), 'webhooks.write', id);
  const endpoints = query.useQuery('get', PATH, { params: { path: { tenant } } });
  const columns: Column<Endpoint>[] = [
    {
      header: 'URL',
      cell: (endpoint) => (
        <WordLink to="/tenants/$tenant/webhooks/$endpoint" params={{ tenant, endpoint: endpoint.id }} className="wraps">
          {endpoint.url}
        </WordLink>
      ),
    },
    { header: 'Description', cell: (endpoint) => endpoint.description },
    { header: 'Topics', cell: (endpoint) => <span className="wraps">{topicsOf(endpoint)}</span> },
    { header: 'State', cell: (endpoint) => <EndpointState endpoint={endpoint} /> },
    { header: 'Added', cell: (endpoint) => <Instant at={instantOf(endpoint.created_at)} /> },
  ];
  return (
    <Page
      title="Webhooks"
      about="Messages about money and budgets, signed as Standard Webhooks, and tried again until they arrive."
      actions={mayWrite && <NewEndpoint tenant={tenant} />}
    >
      <Loaded query={endpoints} what="the endpoints">
        {({ data }) => (
          <DataTable
            caption={`Webhook endpoints of ${tenant}`}
            columns={columns}
            rows={data}
            rowKey={(endpoint) => endpoint.id}
            empty={
              <Text c="dimmed">
                There are no endpoints yet. Add one here, or by <Code>POST /v1/webhooks</Code>.
              </Text>
            }
          />
        )}
      </Loaded>
    </Page>
  );
}

/** An endpoint's topics in words. */
export function topicsOf(endpoint: Endpoint): string {
  return endpoint.topics.includes('*') ? 'all' : endpoint.topics.join(', ');
}

export function EndpointState({ endpoint }: { endpoint: Endpoint }) {
  return (
    <Stack gap={2} align="flex-start">
      <State tone={endpoint.status === 'enabled' ? 'good' : 'bad'}>{endpoint.status}</State>
      {endpoint.reason !== '' && <Text size="xs">{endpoint.reason}</Text>}
    </Stack>
  );
}

function NewEndpoint({ tenant }: { tenant: string }) {
  const queries = useQueryClient();
  return (
    <ActionDialog
      label="New endpoint"
      title="New endpoint"
      fields={[
        { name: 'url', label: 'URL', kind: 'url', required: true, about: 'It gets a POST for each message.' },
        {
          name: 'topics',
          label: 'Topics',
          kind: 'lines',
          initial: '*',
          about: `One a row, or * for all: ${TOPICS.join(', ')}.`,
        },
        { name: 'description', label: 'Description' },
      ]}
      action="Add"
      variant="filled"
      run={async (values) => {
        const topics = values.topics!.split(/[\s,]+/).filter(Boolean);
        const body = {
          url: values.url!,
          topics: topics.length === 0 ? ['*'] : topics,
          description: values.description!,
        };
        return (await api.POST(PATH, { params: { path: { tenant } }, body })).data!;
      }}
      done="The endpoint was added."
      after={(answer, close) => (
        <SecretOnce
          secret={(answer as Endpoint).secret ?? ''}
          variable="TURNPIKE_WEBHOOK_SECRET"
          file="turnpike-webhook.env"
          done={close}
        />
      )}
      onDone={() => void queries.invalidateQueries({ queryKey: ['get', PATH] })}
    />
  );
}
