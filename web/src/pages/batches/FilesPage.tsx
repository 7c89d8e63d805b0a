/** The files that a tenant's projects keep: what they are for, their size, until when; read and deleted by who may. */
import { Button, Code, Group, Text } from '@mantine/core';
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
import { Copied, Instant } from '~/components/values';

import type { FileFilters } from './filters';
import { Download, Filters, listOf } from './parts';
import { displayBytes } from './progress';

type File = Schema<'TenantFileObject'>;

const PATH = '/admin/v1/tenants/{tenant}/files';
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/files');
const PURPOSE: Record<File['purpose'], string> = {
  batch: 'input of batches',
  batch_output: 'results of a batch',
  user_data: 'user data',
};
const OPTIONS = Object.entries(PURPOSE).map(([value, label]) => ({ value, label }));

export function FilesPage() {
  const { tenant } = route.useParams();
  const project = route.useSearch({ select: (search) => search.project });
  const purpose = route.useSearch({ select: (search) => search.purpose });
  const navigate = route.useNavigate();
  const { id } = tenantRoute.useLoaderData();
  const filtered = project !== undefined || purpose !== undefined;
  return (
    <Page
      title="Files"
      about="What projects uploaded, and results of their batches, sealed. Content is read where a project's policy lets people read it, and the audit log says who did."
    >
      <Filters
        key={project}
        project={project}
        label="Purpose"
        options={OPTIONS}
        chosen={purpose}
        apply={(one, chosen) => void navigate({ search: { project: one, purpose: chosen as FileFilters['purpose'] } })}
      />
      <PagedTable
        caption={`Files of ${tenant}`}
        what="the files"
        columns={useColumns(tenant, id)}
        empty={
          filtered ? (
            'No file fits these filters.'
          ) : (
            <Text c="dimmed">
              There are none yet. Upload one by <Code>POST /v1/files</Code>.
            </Text>
          )
        }
        queryKey={['get', PATH, tenant, project, purpose]}
        read={async (after, signal) => {
          const params = { path: { tenant }, query: { project: listOf(project), purpose, after, limit: 50 } };
          return (await api.GET(PATH, { params, signal })).data!;
        }}
      />
    </Page>
  );
}

function useColumns(tenant: string, id: string): Column<File>[] {
  const me = useMe();
  return [
    { header: 'Name', cell: (file) => <span className="wraps">{file.filename}</span> },
    { header: 'For', cell: (file) => PURPOSE[file.purpose] },
    { header: 'Size', numeric: true, cell: (file) => displayBytes(file.bytes) },
    { header: 'Project', cell: (file) => file.project ?? file.project_id },
    { header: 'Made', cell: (file) => <Instant at={file.created_at} /> },
    { header: 'Kept until', cell: (file) => (file.expires_at === null ? 'deleted' : <Instant at={file.expires_at} />) },
    { header: 'Id', cell: (file) => <Copied text={file.id} /> },
    {
      header: 'File',
      cell: (file) => (
        <Group gap="xs" wrap="nowrap" align="flex-start">
          {may(me, 'content.read', id, file.project_id) && (
            <Download
              path={`/admin/v1/tenants/${encodeURIComponent(tenant)}/files/${file.id}/content`}
              label={`Download ${file.filename}`}
            >
              Download
            </Download>
          )}
          {may(me, 'projects.write', id, file.project_id) && <Delete tenant={tenant} file={file} />}
        </Group>
      ),
    },
  ];
}

function Delete({ tenant, file }: { tenant: string; file: File }) {
  const [opened, { open, close }] = useDisclosure();
  const queries = useQueryClient();
  const remove = query.useMutation('delete', `${PATH}/{file}`, {
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ['get', PATH] });
      notifications.show({ message: `The file ${file.filename} was deleted.` });
      close();
    },
  });
  return (
    <>
      <Button size="xs" variant="default" aria-label={`Delete ${file.filename}`} onClick={open}>
        Delete
      </Button>
      <Confirm
        opened={opened}
        close={close}
        title="Delete the file"
        action="Delete"
        pending={remove.isPending}
        error={remove.error}
        confirm={() => remove.mutate({ params: { path: { tenant, file: file.id } } })}
      >
        <Text className="wraps">{file.filename} cannot be read any more, by nobody. This cannot be undone.</Text>
      </Confirm>
    </>
  );
}
