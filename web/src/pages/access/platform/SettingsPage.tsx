/** The platform's settings, which hold for everybody who works on this database; and who set them. */
import { Button, Modal, NativeSelect, TextInput, Title } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';

import { may, useMe } from '~/access/rights';
import { api, isPending, query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { fieldError, Form } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Instant } from '~/components/values';

import { tellPending } from '../pending';
import { Reason } from '~/components/Reason';

type Setting = Schema<'SettingObject'>;
type SettingChange = Schema<'SettingChange'>;

const PATH = '/admin/v1/platform/settings';
const CHANGES_PATH = '/admin/v1/platform/changes';
const MOST = 50;
const WORDS: Record<string, string> = {
  approvals: 'Whether it takes two operators to change prices, terms and these settings, and to give money.',
  grant_approval_over: 'Grants and credit lines above this amount take two operators while approvals are on.',
};

export function SettingsPage() {
  const settings = query.useQuery('get', PATH);
  const changes = query.useQuery('get', CHANGES_PATH, { params: { query: { limit: MOST } } });
  const mayChange = may(useMe(), 'platform.write');
  const [editing, setEditing] = useState<Setting | null>(null);
  const columns: Column<Setting>[] = [
    { header: 'Setting', cell: (one) => one.name },
    { header: 'Value', cell: (one) => one.value },
    { header: 'What it does', cell: (one) => WORDS[one.name] ?? '' },
    ...(mayChange
      ? [
          {
            header: 'Action',
            cell: (one: Setting) => (
              <Button
                size="compact-sm"
                variant="default"
                onClick={() => setEditing(one)}
                aria-label={`Change ${one.name}`}
              >
                Change
              </Button>
            ),
          },
        ]
      : []),
  ];
  return (
    <Page title="Settings" about="They hold for every gateway and command that works on this database.">
      <Loaded query={settings} what="the settings">
        {({ data }) => (
          <DataTable
            caption="Settings"
            columns={columns}
            rows={data}
            rowKey={(one) => one.name}
            empty="There are no settings."
          />
        )}
      </Loaded>
      <Title order={2}>Who set them</Title>
      <Loaded query={changes} what="the changes of settings">
        {({ data }) => (
          <DataTable
            caption="Changes of settings"
            columns={CHANGE_COLUMNS}
            rows={data}
            rowKey={(one) => String(one.number)}
            empty="Nobody has changed a setting; they are as they come."
          />
        )}
      </Loaded>
      <Modal opened={editing !== null} onClose={() => setEditing(null)} title={`Change ${editing?.name ?? ''}`}>
        {editing !== null && <SettingForm setting={editing} done={() => setEditing(null)} />}
      </Modal>
    </Page>
  );
}

const CHANGE_COLUMNS: Column<SettingChange>[] = [
  { header: 'When', cell: (one) => <Instant at={one.at} /> },
  { header: 'Setting', cell: (one) => one.name },
  { header: 'Value', cell: (one) => one.value },
  { header: 'Who', cell: (one) => <span className="wraps">{one.actor}</span> },
  { header: 'Via', cell: (one) => <span className="wraps">{one.via}</span> },
  { header: 'Why', cell: (one) => <span className="wraps">{one.reason || '–'}</span> },
];

function SettingForm({ setting, done }: { setting: Setting; done: () => void }) {
  const [value, setValue] = useState(setting.value);
  const [reason, setReason] = useState('');
  const queries = useQueryClient();
  const change = useMutation({
    mutationFn: async () =>
      (await api.PUT(`${PATH}/{name}`, { params: { path: { name: setting.name } }, body: { value, reason } })).data,
    onSuccess: async (answer) => {
      if (isPending(answer)) tellPending(answer);
      else notifications.show({ message: `${setting.name} is ${value} now.` });
      done();
      await queries.invalidateQueries({ queryKey: ['get'] });
    },
  });
  const shared = {
    label: 'Value',
    value,
    error: fieldError(change.error, 'value'),
    'data-autofocus': true,
    onChange: (event: { currentTarget: { value: string } }) => setValue(event.currentTarget.value),
  };
  return (
    <Form submit={() => change.mutate()} error={change.error} pending={change.isPending} action="Save">
      {setting.values.length > 0 ? (
        <NativeSelect {...shared} data={setting.values} />
      ) : (
        <TextInput {...shared} inputMode="decimal" required />
      )}
      <Reason value={reason} set={setReason} error={change.error} />
    </Form>
  );
}
