/** The projects of a tenant: isolation domains with keys, limits, cache and usage of their own. */
import { Button, Modal, TextInput } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { useQueryClient } from '@tanstack/react-query';
import { getRouteApi, Link } from '@tanstack/react-router';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { fieldError, Form } from '~/components/forms';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Copied, Instant, State } from '~/components/values';

type Project = Schema<'ProjectObject'>;
const PATH = '/admin/v1/tenants/{tenant}/projects';
const route = getRouteApi('/signed-in/tenants/$tenant');

const columns = (tenant: string): Column<Project>[] => [
  {
    header: 'Name',
    cell: (project) => (
      <Link to="/tenants/$tenant/projects/$project" params={{ tenant, project: project.name }} className="wraps">
        {project.name}
      </Link>
    ),
  },
  {
    header: 'State',
    cell: (project) =>
      project.suspended_at === null ? <State tone="good">active</State> : <State tone="bad">suspended</State>,
  },
  { header: 'Id', cell: (project) => <Copied text={project.id} /> },
  { header: 'Created', cell: (project) => <Instant at={project.created_at} /> },
];

export function ProjectsPage() {
  const { tenant } = route.useParams();
  const { id } = route.useLoaderData();
  const mayCreate = may(useMe(), 'projects.write', id);
  return (
    <Page
      title="Projects"
      about="Each project has keys, limits, usage and a cache of its own."
      actions={mayCreate && <NewProject tenant={tenant} />}
    >
      <PagedTable
        caption={`Projects of ${tenant}`}
        what="the projects"
        columns={columns(tenant)}
        empty="There are no projects yet."
        queryKey={['get', PATH, tenant]}
        read={async (after, signal) => {
          const params = { path: { tenant }, query: { after, limit: 50 } };
          return (await api.GET(PATH, { params, signal })).data!;
        }}
      />
    </Page>
  );
}

function NewProject({ tenant }: { tenant: string }) {
  const [opened, { open, close }] = useDisclosure();
  const [name, setName] = useState('');
  const queries = useQueryClient();
  const create = query.useMutation('post', PATH, {
    onSuccess: async (project) => {
      await queries.invalidateQueries({ queryKey: ['get', PATH] });
      notifications.show({ message: `The project ${project.name} was created.` });
      setName('');
      close();
    },
  });
  return (
    <>
      <Button onClick={open}>New project</Button>
      <Modal opened={opened} onClose={close} title="New project">
        <Form
          submit={() => create.mutate({ params: { path: { tenant } }, body: { name } })}
          error={create.error}
          pending={create.isPending}
          action="Create"
        >
          <TextInput
            label="Name"
            required
            data-autofocus
            value={name}
            error={fieldError(create.error, 'name')}
            onChange={(event) => setName(event.currentTarget.value)}
          />
        </Form>
      </Modal>
    </>
  );
}
