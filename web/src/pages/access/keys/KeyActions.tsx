/** Changing, rotating and revoking a key of a tenant or of an operator. */
import { Button, Checkbox, NativeSelect, Stack, Text } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { api, type Schema } from '~/api/client';
import { Confirm, fieldError, Form } from '~/components/forms';
import { SecretModal, useHeldOpen } from '~/components/SecretModal';

import { Reason } from '~/components/Reason';
import { fieldsOf, type Key, keyPatch, nameOf } from './fields';
import { KeyFieldInputs } from './KeyFieldInputs';
import { KeySecret } from './KeySecret';
import { KEY_PATH, keyParams, keyPath, KEYS_PATH, OPERATOR_KEYS_PATH } from './path';

interface KeyActionsProps {
  apiKey: Key;
  /** The name and the id of the tenant; neither for an operator's key. */
  tenant?: string;
  tenantId?: string;
}

export function KeyActions(props: KeyActionsProps) {
  const [open, setOpen] = useState<'change' | 'rotate' | 'revoke' | null>(null);
  const close = (): void => setOpen(null);
  return (
    <>
      <Button variant="default" onClick={() => setOpen('change')}>
        Change
      </Button>
      {!props.apiKey.stands_in && (
        <Button variant="default" onClick={() => setOpen('rotate')}>
          Rotate
        </Button>
      )}
      <Button color="red" variant="outline" onClick={() => setOpen('revoke')}>
        Revoke
      </Button>
      <SecretModal opened={open === 'change'} onClose={close} title={`Change ${nameOf(props.apiKey)}`} size="lg">
        <Change {...props} done={close} />
      </SecretModal>
      <SecretModal opened={open === 'rotate'} onClose={close} title={`Rotate ${nameOf(props.apiKey)}`} size="lg">
        <Rotate {...props} done={close} />
      </SecretModal>
      <Revoke {...props} opened={open === 'revoke'} close={close} />
    </>
  );
}

/** Reads the key and the lists of keys anew. */
function useRefreshed(): () => Promise<void> {
  const queries = useQueryClient();
  return async () => {
    for (const path of [KEYS_PATH, KEY_PATH, OPERATOR_KEYS_PATH, keyPath(undefined)]) {
      await queries.invalidateQueries({ queryKey: ['get', path] });
    }
  };
}

function Change({ apiKey, tenant, tenantId, done }: KeyActionsProps & { done: () => void }) {
  const [before] = useState(() => fieldsOf(apiKey));
  const [fields, setFields] = useState(before);
  const [reason, setReason] = useState('');
  const refresh = useRefreshed();
  const params = keyParams(tenant, apiKey.id);
  const change = useMutation({
    mutationFn: () => api.PATCH(keyPath(tenant), { params, body: { ...keyPatch(before, fields), reason } }),
    onSuccess: async () => {
      await refresh();
      done();
    },
  });
  return (
    <Form submit={() => change.mutate()} error={change.error} pending={change.isPending} action="Save">
      <KeyFieldInputs kind={apiKey.kind} fields={fields} set={setFields} error={change.error} tenantId={tenantId} />
      <Reason value={reason} set={setReason} error={change.error} />
    </Form>
  );
}

const OVERLAPS = [
  { value: '0', label: 'It ends now' },
  { value: '1', label: 'For an hour' },
  { value: '24', label: 'For a day' },
  { value: '168', label: 'For a week' },
];

function Rotate({ apiKey, tenant, done }: KeyActionsProps & { done: () => void }) {
  const [hours, setHours] = useState('24');
  const [reason, setReason] = useState('');
  const refresh = useRefreshed();
  const params = keyParams(tenant, apiKey.id);
  const rotate = useMutation({
    mutationFn: async () => {
      const until = new Date(Date.now() + Number(hours) * 3_600_000).toISOString();
      return (await api.POST(`${keyPath(tenant)}/rotate`, { params, body: { old_secret_until: until, reason } })).data!;
    },
    onSuccess: refresh,
  });
  useHeldOpen(rotate.isPending);
  if (rotate.data !== undefined) return <KeySecret made={rotate.data as Schema<'KeyWithSecret'>} done={done} />;
  return (
    <Form submit={() => rotate.mutate()} error={rotate.error} pending={rotate.isPending} action="Rotate">
      <Text size="sm">The key gets a new secret. Its id, name and limits stay.</Text>
      <NativeSelect
        label="How long the present secret is valid too"
        data={OVERLAPS}
        value={hours}
        error={fieldError(rotate.error, 'old_secret_until')}
        onChange={(event) => setHours(event.currentTarget.value)}
      />
      <Reason value={reason} set={setReason} error={rotate.error} />
    </Form>
  );
}

function Revoke({ apiKey, tenant, opened, close }: KeyActionsProps & { opened: boolean; close: () => void }) {
  const [leaked, setLeaked] = useState(false);
  const refresh = useRefreshed();
  const query = leaked ? { leaked } : {};
  const revoke = useMutation({
    mutationFn: () => api.DELETE(keyPath(tenant), { params: { ...keyParams(tenant, apiKey.id), query } }),
    onSuccess: async () => {
      await refresh();
      close();
    },
  });
  return (
    <Confirm
      opened={opened}
      close={close}
      title={`Revoke ${nameOf(apiKey)}`}
      action="Revoke"
      typed={nameOf(apiKey)}
      pending={revoke.isPending}
      error={revoke.error}
      confirm={() => revoke.mutate()}
    >
      <Stack>
        <div>Within a second no gateway accepts it any more, and nothing makes it valid again.</div>
        {apiKey.kind === 'project' && (
          <Checkbox
            label="Somebody else may have it: stop its batches too"
            description="Batches that it ordered go on otherwise."
            checked={leaked}
            onChange={(event) => setLeaked(event.currentTarget.checked)}
          />
        )}
      </Stack>
    </Confirm>
  );
}
