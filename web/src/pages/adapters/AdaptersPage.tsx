/** The adapters of a tenant's projects: what to ask for, where each is ready, what it is used for, what that costs. */
import { Button, Code, Stack, Text } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { useQueryClient } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Confirm } from '~/components/forms';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Copied, Instant, Money } from '~/components/values';
import { useProjects } from '~/pages/access/useProjects';
import { displayBytes } from '~/pages/batches/progress';

import { UploadButton } from './UploadButton';

type Adapter = Schema<'TenantAdapterObject'>;

const PATH = '/admin/v1/tenants/{tenant}/adapters';
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/adapters');

export function AdaptersPage() {
  const { tenant } = route.useParams();
  const project = route.useSearch({ select: (search) => search.project });
  const { id } = tenantRoute.useLoaderData();
  const me = useMe();
  const writable = useProjects(tenant).filter((one) => may(me, 'projects.write', id, one.id));
  return (
    <Page
      title="Adapters"
      about="Low-rank adapters (LoRA) of served models, sealed, each of one project. Requests ask for one by its name behind the model’s."
      actions={writable.length > 0 && <UploadButton tenant={tenant} projects={writable.map((one) => one.name)} />}
    >
      <PagedTable
        caption={`Adapters of ${tenant}`}
        what="the adapters"
        columns={useColumns(tenant, id)}
        empty={
          project === undefined ? (
            <Text c="dimmed">
              There are none yet. Upload what PEFT saves: here, by <Code>turnpike adapters upload</Code>, or by{' '}
              <Code>POST /v1/adapters</Code>.
            </Text>
          ) : (
            'This project has none.'
          )
        }
        queryKey={['get', PATH, tenant, project]}
        read={async (after, signal) => {
          const asked = { project: project === undefined ? undefined : [project], after, limit: 50 };
          return (await api.GET(PATH, { params: { path: { tenant }, query: asked }, signal })).data!;
        }}
      />
    </Page>
  );
}

function useColumns(tenant: string, id: string): Column<Adapter>[] {
  const me = useMe();
  const whole = (value: number): string => value.toLocaleString('en');
  return [
    { header: 'Ask for the model', cell: (adapter) => <Copied text={adapter.model} /> },
    { header: 'Base', cell: (adapter) => <span className="unbroken">{adapter.base}</span> },
    { header: 'Rank', numeric: true, cell: (adapter) => adapter.rank },
    { header: 'Size', numeric: true, cell: (adapter) => displayBytes(adapter.bytes) },
    { header: 'Changes', cell: (adapter) => changed(adapter) },
    { header: 'Ready at', cell: (adapter) => adapter.resident?.join(', ') || 'no replica' },
    { header: 'Requests', numeric: true, cell: (adapter) => whole(adapter.use.requests) },
    {
      header: 'Tokens',
      numeric: true,
      cell: ({ use }) => whole(use.input_tokens + use.output_tokens),
    },
    { header: 'Hours ready', numeric: true, cell: ({ use }) => use.ready_hours.toFixed(2) },
    { header: 'Cost this month', numeric: true, cell: ({ use }) => <Cost use={use} /> },
    { header: 'Project', cell: (adapter) => adapter.project ?? adapter.project_id },
    { header: 'Made', cell: (adapter) => <Instant at={adapter.created_at} /> },
    {
      header: 'Adapter',
      cell: (adapter) =>
        may(me, 'projects.write', id, adapter.project_id) && <Delete tenant={tenant} adapter={adapter} />,
    },
  ];
}

function changed(adapter: Adapter): string {
  const layers = `${adapter.targets.join(', ')} in ${adapter.layers === 1 ? 'one layer' : `${adapter.layers} layers`}`;
  return adapter.invocation_tokens.length === 0 ? layers : `${layers}, once it is invoked`;
}

function Cost({ use }: { use: Adapter['use'] }) {
  if (use.cost.length === 0) return <>–</>;
  return (
    <>
      {use.cost.map(({ amount, currency }) => (
        <div key={currency}>
          <Money amount={amount} currency={currency} places={4} />
        </div>
      ))}
    </>
  );
}

function Delete({ tenant, adapter }: { tenant: string; adapter: Adapter }) {
  const [opened, { open, close }] = useDisclosure();
  const queries = useQueryClient();
  const remove = query.useMutation('delete', `${PATH}/{adapter}`, {
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ['get', PATH] });
      notifications.show({ message: `The adapter ${adapter.model} was deleted.` });
      close();
    },
  });
  return (
    <>
      <Button size="xs" variant="default" aria-label={`Delete ${adapter.model}`} onClick={open}>
        Delete
      </Button>
      <Confirm
        opened={opened}
        close={close}
        title="Delete the adapter"
        action="Delete"
        typed={adapter.name}
        pending={remove.isPending}
        error={remove.error}
        confirm={() => remove.mutate({ params: { path: { tenant, adapter: adapter.id } } })}
      >
        <Stack gap="xs">
          <Text className="wraps">
            Requests for {adapter.model} are refused from then on; those that run go on to their end.
          </Text>
          <Text>Its content cannot be read any more, by nobody. This cannot be undone.</Text>
        </Stack>
      </Confirm>
    </>
  );
}
