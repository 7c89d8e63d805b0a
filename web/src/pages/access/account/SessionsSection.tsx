/** Where the user is signed in, and ending that. */
import { Button, Text } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';

import { api, query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Confirm, FormProblem } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { Instant, State } from '~/components/values';

import { Section } from '../Section';

const PATH = '/admin/v1/sessions';
type Session = Schema<'SessionObject'>;

export function SessionsSection() {
  const sessions = query.useQuery('get', PATH);
  const queries = useQueryClient();
  const navigate = useNavigate();
  const [ending, { open, close }] = useDisclosure();
  const end = useMutation({
    mutationFn: (session: string) => api.DELETE(`${PATH}/{session}`, { params: { path: { session } } }),
    onSuccess: () => queries.invalidateQueries({ queryKey: ['get', PATH] }),
  });
  const endAll = useMutation({
    mutationFn: () => api.POST(`${PATH}/revoke-all`),
    onSuccess: async () => {
      queries.clear();
      await navigate({ to: '/sign-in' });
    },
  });
  const columns: Column<Session>[] = [
    {
      header: 'Browser',
      cell: (one) => (
        <>
          <Text size="sm" maw={280} className="wraps">
            {browserOf(one.user_agent)}
          </Text>
          {one.current && <State tone="good">This one</State>}
        </>
      ),
    },
    { header: 'Address', cell: (one) => one.address || '–' },
    { header: 'By', cell: (one) => one.method },
    { header: 'Since', cell: (one) => <Instant at={one.created_at} distance /> },
    { header: 'Last seen', cell: (one) => <Instant at={one.last_seen_at} distance /> },
    { header: 'Ends', cell: (one) => <Instant at={one.expires_at} distance /> },
    {
      header: 'Action',
      cell: (one) =>
        !one.current && (
          <Button
            size="compact-sm"
            variant="default"
            onClick={() => end.mutate(one.id)}
            aria-label={`End the session of ${one.address || 'an unknown address'}`}
          >
            End
          </Button>
        ),
    },
  ];
  return (
    <Section
      title="Where you are signed in"
      actions={
        <Button variant="default" onClick={open}>
          Sign out everywhere
        </Button>
      }
    >
      <FormProblem error={end.error} />
      <Loaded query={sessions} what="your sessions">
        {({ data }) => (
          <DataTable
            caption="Your sessions"
            columns={columns}
            rows={data}
            rowKey={(one) => one.id}
            empty="There are none."
          />
        )}
      </Loaded>
      <Confirm
        opened={ending}
        close={close}
        title="Sign out everywhere"
        action="Sign out everywhere"
        pending={endAll.isPending}
        error={endAll.error}
        confirm={() => endAll.mutate()}
      >
        All your sessions end, this one too.
      </Confirm>
    </Section>
  );
}

/** The browser and the system that a User-Agent header names, as far as people care. */
export function browserOf(agent: string): string {
  const browser = /(Edg|OPR|Firefox|Chrome|Safari|curl)\/(\d+)/.exec(agent);
  const system = /(Windows|Android|iPhone|iPad|Mac OS X|CrOS|Linux)/.exec(agent)?.[1];
  if (browser === null) return agent || 'Unknown';
  const name = { Edg: 'Edge', OPR: 'Opera' }[browser[1]!] ?? browser[1]!;
  return `${name} ${browser[2]}${system === undefined ? '' : ` on ${system.replace('Mac OS X', 'macOS')}`}`;
}
