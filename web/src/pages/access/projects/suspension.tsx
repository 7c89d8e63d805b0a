/** Suspending and resuming a tenant or project: its requests are refused, and what runs finishes or ends. */
import { Alert, Button, Modal, Radio, Stack, Text } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { api } from '~/api/client';
import { fieldError, Form } from '~/components/forms';
import { Instant } from '~/components/values';

import { Reason } from '~/components/Reason';

type Path = '/admin/v1/tenants/{tenant}';

interface SuspensionProps {
  tenant: string;
  /** None: the tenant itself. */
  project?: string;
  suspendedAt: string | null;
  mayChange: boolean;
}

/** Says that it is suspended, and offers to suspend or resume. */
export function Suspension({ tenant, project, suspendedAt, mayChange }: SuspensionProps) {
  const [opened, { open, close }] = useDisclosure();
  const what = project === undefined ? `the tenant ${tenant}` : `the project ${project}`;
  const path = pathOf(tenant, project);
  if (suspendedAt === null) {
    if (!mayChange) return null;
    return (
      <>
        <Button variant="outline" color="red" onClick={open}>
          Suspend {project === undefined ? 'the tenant' : 'the project'}
        </Button>
        <Modal opened={opened} onClose={close} title={`Suspend ${what}?`}>
          <SuspensionForm path={path} done={close} />
        </Modal>
      </>
    );
  }
  return (
    <>
      <Alert color="red" variant="outline" role="note" title={`${what[0]!.toUpperCase()}${what.slice(1)} is suspended`}>
        <Stack gap="xs" align="flex-start">
          <Text size="sm">
            Since <Instant at={suspendedAt} /> its requests are refused.
          </Text>
          {mayChange && (
            <Button size="xs" variant="default" onClick={open}>
              Resume
            </Button>
          )}
        </Stack>
      </Alert>
      <Modal opened={opened} onClose={close} title={`Resume ${what}?`}>
        <ResumptionForm path={path} done={close} />
      </Modal>
    </>
  );
}

/** The path of what is suspended, typed as that of a tenant: a project's routes have the same shapes. */
function pathOf(tenant: string, project: string | undefined): Path {
  const at = `/admin/v1/tenants/${encodeURIComponent(tenant)}`;
  return (project === undefined ? at : `${at}/projects/${encodeURIComponent(project)}`) as Path;
}

const NO_PARAMS = { params: { path: { tenant: '' } } }; // the path has no parameter left

/** Reads anew all that may show whether something is suspended. */
function useRefreshed(): () => Promise<void> {
  const queries = useQueryClient();
  return () => queries.invalidateQueries({ queryKey: ['get'] });
}

function SuspensionForm({ path, done }: { path: Path; done: () => void }) {
  const [running, setRunning] = useState<'finish' | 'end'>('finish');
  const [reason, setReason] = useState('');
  const refresh = useRefreshed();
  const suspend = useMutation({
    mutationFn: () => api.POST(`${path}/suspend`, { ...NO_PARAMS, body: { running, reason } }),
    onSuccess: async () => {
      done();
      await refresh();
    },
  });
  return (
    <Form
      submit={() => suspend.mutate()}
      error={suspend.error}
      pending={suspend.isPending}
      action="Suspend"
      danger
      cancel={done}
    >
      <Text size="sm">
        Within a second every gateway refuses its requests with an error, until it is resumed. Its keys, money and cache
        stay as they are.
      </Text>
      <Radio.Group
        label="Requests that run now"
        value={running}
        error={fieldError(suspend.error, 'running')}
        onChange={(value) => setRunning(value as 'finish' | 'end')}
      >
        <Stack gap="xs" mt="xs">
          <Radio value="finish" label="They finish" />
          <Radio value="end" label="They end now, billed for what was delivered" />
        </Stack>
      </Radio.Group>
      <Reason value={reason} set={setReason} error={suspend.error} />
    </Form>
  );
}

function ResumptionForm({ path, done }: { path: Path; done: () => void }) {
  const [reason, setReason] = useState('');
  const refresh = useRefreshed();
  const resume = useMutation({
    mutationFn: () => api.POST(`${path}/resume`, { ...NO_PARAMS, body: { reason } }),
    onSuccess: async () => {
      done();
      await refresh();
    },
  });
  return (
    <Form submit={() => resume.mutate()} error={resume.error} pending={resume.isPending} action="Resume" cancel={done}>
      <Text size="sm">Within a second every gateway answers its requests again, and what they use is billed.</Text>
      <Reason value={reason} set={setReason} error={resume.error} />
    </Form>
  );
}
