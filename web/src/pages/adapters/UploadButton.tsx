/** Uploads an adapter: picks its files, says how far it is, and why it is refused if it is. */
import { Button, FileButton, Group, Input, Modal, Progress, Stack, Text, TextInput } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { query, type Schema } from '~/api/client';
import { upload } from '~/api/upload';
import { fieldError, Form } from '~/components/forms';
import { displayBytes } from '~/pages/batches/progress';
import { Choice } from '~/pages/playground/Choice';

import { adapterFiles } from './files';

type Adapter = Schema<'TenantAdapterObject'>;

const LIST = '/admin/v1/tenants/{tenant}/adapters';
const MODELS = '/admin/v1/tenants/{tenant}/projects/{project}/playground';

interface UploadProps {
  tenant: string;
  /** The names of the projects that may get one. */
  projects: string[];
}

export function UploadButton({ tenant, projects }: UploadProps) {
  const [opened, { open, close }] = useDisclosure();
  return (
    <>
      <Button onClick={open}>Upload an adapter</Button>
      <Modal opened={opened} onClose={close} title="Upload an adapter">
        <UploadForm tenant={tenant} projects={projects} close={close} />
      </Modal>
    </>
  );
}

function UploadForm({ tenant, projects, close }: UploadProps & { close: () => void }) {
  const [project, setProject] = useState(projects[0]!);
  const [model, setModel] = useState('');
  const [name, setName] = useState('');
  const [picked, setPicked] = useState<File[]>([]);
  const [share, setShare] = useState(0);
  const queries = useQueryClient();
  const served = query.useQuery('get', MODELS, { params: { path: { tenant, project } } }, { retry: false });
  const models = served.data?.models.map((one) => one.id) ?? [];
  const base = model || (models[0] ?? '');
  const send = useMutation({
    mutationFn: async (dryRun: boolean) => {
      setShare(0);
      const { config, tensors } = await adapterFiles(picked);
      const form = new FormData();
      for (const [field, text] of [
        ['model', base],
        ['name', name.trim()],
        ['config', config],
        ['dry_run', String(dryRun)],
      ] as const)
        form.append(field, text);
      form.append('file', tensors, 'adapter_model.safetensors');
      const path = `/admin/v1/tenants/${encodeURIComponent(tenant)}/projects/${encodeURIComponent(project)}/adapters`;
      return upload<Adapter>(path, form, setShare);
    },
    onSuccess: async (made, dryRun) => {
      if (dryRun) return;
      await queries.invalidateQueries({ queryKey: ['get', LIST] });
      notifications.show({ message: `Requests can ask for the model ${made.model} now.` });
      close();
    },
  });
  return (
    <Form
      submit={() => send.mutate(false)}
      error={send.error}
      pending={send.isPending}
      action="Upload"
      cancel={close}
      buttons={
        <Button variant="default" disabled={send.isPending} onClick={() => send.mutate(true)}>
          Only check it
        </Button>
      }
    >
      <Choice label="Project" value={project} choices={projects.map((one) => [one, one])} set={setProject} />
      {models.length > 0 ? (
        <Choice
          label="Base model"
          value={base}
          choices={models.map((one) => [one, one])}
          set={setModel}
          error={fieldError(send.error, 'model')}
        />
      ) : (
        <TextInput
          label="Base model"
          description="The served model that it changes."
          value={model}
          onChange={(event) => setModel(event.currentTarget.value)}
          error={fieldError(send.error, 'model')}
        />
      )}
      <TextInput
        label="Name"
        description={`Requests ask for ${base || 'MODEL'}:${name.trim() || 'NAME'}.`}
        value={name}
        onChange={(event) => setName(event.currentTarget.value)}
        error={fieldError(send.error, 'name')}
      />
      <Input.Wrapper
        label="Files"
        description="adapter_config.json and adapter_model.safetensors as PEFT saves them, their folder, or a ZIP archive."
        error={fieldError(send.error, 'file') ?? fieldError(send.error, 'config')}
        labelElement="div"
      >
        <Group gap="xs" mt={4}>
          <FileButton multiple accept=".json,.safetensors,.zip" onChange={setPicked}>
            {(props) => (
              <Button size="xs" variant="default" {...props}>
                Choose files
              </Button>
            )}
          </FileButton>
          <FileButton multiple inputProps={{ webkitdirectory: '' } as object} onChange={setPicked}>
            {(props) => (
              <Button size="xs" variant="default" {...props}>
                Choose a folder
              </Button>
            )}
          </FileButton>
        </Group>
        <Text size="sm" mt={4} className="wraps">
          {picked.length === 0
            ? 'Nothing is chosen yet.'
            : `${picked.map((file) => file.name).join(', ')}: ${displayBytes(picked.reduce((sum, file) => sum + file.size, 0))}`}
        </Text>
      </Input.Wrapper>
      {send.isPending && <Sending share={share} />}
      {send.data !== undefined && !send.isPending && (
        <Text role="status">
          {send.data.model} can be served: rank {send.data.rank}, {send.data.targets.join(', ')} in {send.data.layers}{' '}
          layers. Nothing is kept yet.
        </Text>
      )}
    </Form>
  );
}

function Sending({ share }: { share: number }) {
  const percent = Math.floor(share * 100);
  return (
    <Stack gap={4}>
      <Text size="sm" role="status">
        {percent < 100 ? 'It is being sent.' : 'It has come, and is being checked: shapes, numbers, its base.'}
      </Text>
      <Progress.Root size="sm">
        <Progress.Section value={percent} aria-label={`${percent} % is sent`} />
      </Progress.Root>
    </Stack>
  );
}
