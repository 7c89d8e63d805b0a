/** Who changed what: a list with filters, each entry with what it changed, the file, and the state of the chain. */
import { Anchor, Button, Code, Group, Modal, Stack, Table, Text, TextInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { type FormEvent, type ReactNode, useState } from 'react';

import { api, download, query, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { FormProblem } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { PagedTable } from '~/components/PagedTable';
import { Copied, Instant, State } from '~/components/values';
import { displayCount } from '~/money/decimal';

import { Details } from '../Details';
import { differences, summary } from './difference';
import { AUDIT_PATH, type AuditFilters, auditQuery, csvPath } from './filters';

type Entry = Schema<'AuditEntryObject'>;

const MEANS: Record<Entry['actor']['means'], string> = {
  session: 'console',
  admin_key: 'admin key',
  operator_key: 'operator key',
  project_key: 'key',
  command: 'command',
  system: 'by itself',
  anonymous: 'not signed in',
};

interface AuditLogProps {
  filters: AuditFilters;
  set: (filters: AuditFilters) => void;
  /** The tenant of the page; undefined on the platform's, whose entries are of all tenants. */
  tenant?: string;
  /** Whether the user may see the state of the chain. */
  chain: boolean;
}

export function AuditLog({ filters, set, tenant, chain }: AuditLogProps) {
  const wanted = auditQuery(tenant === undefined ? filters : { ...filters, tenant });
  const [entry, setEntry] = useState<Entry | null>(null);
  const save = useMutation({ mutationFn: () => download(csvPath(wanted)) });
  const columns: Column<Entry>[] = [
    { header: 'When', cell: (one) => <Instant at={one.at} /> },
    {
      header: 'Who',
      cell: (one) => (
        <>
          <Anchor
            component="button"
            inherit
            ta="start"
            className="wraps"
            onClick={() => set({ ...filters, actor: one.actor.name })}
          >
            {one.actor.name || one.actor.id || '–'}
          </Anchor>
          <Text size="xs" c="dimmed">
            {viaOf(one.actor)}
          </Text>
        </>
      ),
    },
    {
      header: 'What',
      cell: (one) => (
        <Anchor component="button" inherit ta="start" onClick={() => setEntry(one)}>
          {one.action}
        </Anchor>
      ),
    },
    ...(tenant === undefined
      ? [{ header: 'Tenant', cell: (one: Entry) => <span className="wraps">{one.tenant ?? 'the platform'}</span> }]
      : []),
    {
      header: 'Changed',
      cell: (one) => (
        <Text size="sm" className="wraps" miw={180}>
          {summary(differences(one.before as never, one.after as never)) || '–'}
        </Text>
      ),
    },
    { header: 'Why', cell: (one) => <span className="wraps">{one.reason}</span> },
  ];
  return (
    <Stack>
      <Filters key={JSON.stringify(filters)} filters={filters} set={set} ofTenant={tenant !== undefined}>
        <Button variant="default" loading={save.isPending} onClick={() => save.mutate()}>
          Save as CSV
        </Button>
      </Filters>
      <FormProblem error={save.error} />
      <PagedTable
        caption="Changes"
        what="the audit log"
        columns={columns}
        empty="Nothing was changed that is like this."
        queryKey={['get', AUDIT_PATH, wanted]}
        read={async (after, signal) => {
          const params = { query: { ...wanted, after, limit: 50 } };
          return (await api.GET(AUDIT_PATH, { params, signal })).data as Schema<'AuditEntryList'>;
        }}
      />
      {chain && <Chain tenant={tenant} />}
      <Modal opened={entry !== null} onClose={() => setEntry(null)} title={entry?.action ?? ''} size="xl">
        {entry !== null && (
          <EntryDetails
            entry={entry}
            filter={(change) => {
              set({ ...filters, ...change });
              setEntry(null);
            }}
          />
        )}
      </Modal>
    </Stack>
  );
}

/** How somebody acted: by a session or key, through which, and from where. */
export function viaOf({ means, through, address }: Entry['actor']): string {
  return [MEANS[means], through && `through ${through}`, address].filter(Boolean).join(', ');
}

interface FiltersProps {
  filters: AuditFilters;
  set: (filters: AuditFilters) => void;
  ofTenant: boolean;
  children: ReactNode;
}

function Filters({ filters, set, ofTenant, children }: FiltersProps) {
  const [typed, setTyped] = useState(filters);
  const field = (name: keyof AuditFilters) => ({
    value: typed[name] ?? '',
    onChange: (event: { currentTarget: { value: string } }) =>
      setTyped({ ...typed, [name]: event.currentTarget.value || undefined }),
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    set(typed);
  };
  return (
    <form onSubmit={submit}>
      <Group align="flex-end" gap="sm">
        <TextInput label="Who" placeholder="Name or id" data-filter {...field('actor')} />
        <TextInput label="Action" placeholder="budget.*" {...field('action')} />
        <TextInput label="Kind of object" placeholder="api_key" {...field('target')} />
        <TextInput label="Object's id" {...field('target_id')} />
        {!ofTenant && <TextInput label="Tenant" placeholder="Name or id" {...field('tenant')} />}
        <TextInput label="From (UTC)" type="date" {...field('from')} />
        <TextInput label="To (UTC)" type="date" {...field('to')} />
        <Button type="submit">Show</Button>
        <Button variant="default" onClick={() => set({})}>
          Clear
        </Button>
        {children}
      </Group>
    </form>
  );
}

function EntryDetails({ entry, filter }: { entry: Entry; filter: (change: AuditFilters) => void }) {
  const changed = differences(entry.before as never, entry.after as never);
  return (
    <Stack>
      <Details
        label="The entry"
        fields={[
          ['When', <Instant key="at" at={entry.at} />],
          ['Who', entry.actor.name || '–'],
          ['Via', viaOf(entry.actor)],
          ['Their id', entry.actor.id && <Copied key="actor" text={entry.actor.id} />],
          ['Object', `${entry.target.type} ${entry.target.id}`],
          ['Tenant', entry.tenant ?? 'the platform'],
          ['Project', entry.project],
          ['Why', entry.reason || '–'],
          ['Request', entry.request_id && <Copied key="request" text={entry.request_id} />],
          ['Number in its chain', displayCount(entry.number)],
        ]}
      />
      <Table.ScrollContainer minWidth={0} type="native" tabIndex={0} role="region" aria-label="What was changed">
        <Table aria-label="What was changed">
          <Table.Thead>
            <Table.Tr>
              <Table.Th scope="col">Field</Table.Th>
              <Table.Th scope="col">Before</Table.Th>
              <Table.Th scope="col">After</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {changed.map((one) => (
              <Table.Tr key={one.field}>
                <Table.Th scope="row" fw={500}>
                  {one.field}
                </Table.Th>
                <Table.Td className="wraps">{one.before === null ? '–' : <del>{one.before}</del>}</Table.Td>
                <Table.Td className="wraps">{one.after === null ? '–' : <ins>{one.after}</ins>}</Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Table.ScrollContainer>
      <Group>
        <Button variant="default" onClick={() => filter({ target: entry.target.type, target_id: entry.target.id })}>
          All changes of this object
        </Button>
      </Group>
    </Stack>
  );
}

function Chain({ tenant }: { tenant: string | undefined }) {
  const chain = query.useQuery(
    'get',
    '/admin/v1/audit/chain',
    { params: { query: { tenant } } },
    { refetchInterval: 60_000, staleTime: 30_000 },
  );
  return (
    <Loaded query={chain} what="the state of the hash chain" height={40}>
      {(found) => (
        <Stack gap={4}>
          <Group gap="xs">
            <State tone={found.problems.length === 0 ? 'good' : 'bad'}>
              {found.problems.length === 0 ? 'The chain is whole' : 'The chain is broken'}
            </State>
            <Text size="sm">
              {displayCount(found.entries)} entries{tenant === undefined && ' of the platform'}; the last{' '}
              {displayCount(found.checked)} were verified just now
              {tenant !== undefined && `, anchored up to number ${displayCount(found.anchored)}`}.
            </Text>
          </Group>
          {found.problems.map((problem) => (
            <Text key={problem} size="sm" c="var(--mantine-color-error)" role="alert">
              {problem}
            </Text>
          ))}
          <Text size="xs" c="dimmed" className="wraps">
            Head <Code>{found.head}</Code>. `turnpike audit log --verify` reads the whole log.
          </Text>
        </Stack>
      )}
    </Loaded>
  );
}
