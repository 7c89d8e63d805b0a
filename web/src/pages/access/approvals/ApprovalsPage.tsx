/** What waits for a second person, each change with what it changes; and what became of earlier ones. */
import { Button, Group, NativeSelect, Paper, Stack, Text, Title } from '@mantine/core';
import { getRouteApi } from '@tanstack/react-router';

import { query } from '~/api/client';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Instant, State } from '~/components/values';

import { Decisions, useTenantName } from './decisions';
import { WhatChanges } from './WhatChanges';
import { type Change, titleOf } from './words';

const PATH = '/admin/v1/approvals';
const MOST = 50;
export const STATES = ['pending', 'approved', 'withdrawn'] as const;
const STATE_LABELS = { pending: 'What waits', approved: 'Approved', withdrawn: 'Withdrawn' };
const route = getRouteApi('/signed-in/platform/approvals');

export function ApprovalsPage() {
  const { state = 'pending', change } = route.useSearch();
  const navigate = route.useNavigate();
  const found = query.useQuery('get', PATH, { params: { query: { state, limit: MOST } } });
  return (
    <Page title="Approvals" about="Changes that take two people. Nobody approves their own.">
      <Group>
        <NativeSelect
          label="Show"
          data={STATES.map((value) => ({ value, label: STATE_LABELS[value] }))}
          value={state}
          onChange={(event) =>
            void navigate({ search: { state: event.currentTarget.value as (typeof STATES)[number] }, replace: true })
          }
        />
      </Group>
      <Loaded query={found} what="the changes">
        {({ data, has_more }) => (
          <Stack>
            {data.length === 0 && (
              <Text c="dimmed">{state === 'pending' ? 'Nothing waits for approval.' : 'There are none.'}</Text>
            )}
            {data
              .filter((one) => change === undefined || one.id === change)
              .map((one) => (
                <ChangeCard key={one.id} change={one} />
              ))}
            {change !== undefined && data.some((one) => one.id !== change) && (
              <Button variant="subtle" onClick={() => void navigate({ search: { state } })}>
                Show all
              </Button>
            )}
            {has_more && <Text size="sm">The newest {MOST} are shown.</Text>}
          </Stack>
        )}
      </Loaded>
    </Page>
  );
}

function ChangeCard({ change }: { change: Change }) {
  const tenant = useTenantName(change.tenant_id);
  const title = titleOf(change, tenant);
  return (
    <Paper component="article" withBorder p="md" aria-label={title}>
      <Stack gap="sm">
        <Group justify="space-between" align="flex-start">
          <Title order={2} className="wraps">
            {title}
          </Title>
          <ChangeState state={change.state} />
        </Group>
        <Text size="sm" className="wraps">
          Proposed <Instant at={change.created_at} distance /> by {change.author} ({change.author_via})
          {change.reason && `: ${change.reason}`}
        </Text>
        <WhatChanges change={change} tenant={tenant} />
        {change.decider !== null && (
          <Text size="sm" className="wraps">
            {DECIDED[change.state]} <Instant at={change.decided_at} distance /> by {change.decider} (
            {change.decider_via}){change.decision_reason && `: ${change.decision_reason}`}
            {change.result !== null && `. It made ${change.result}.`}
          </Text>
        )}
        <Decisions change={change} />
      </Stack>
    </Paper>
  );
}

const DECIDED = { pending: '', approved: 'Approved', withdrawn: 'Ended without being made' };

const CHANGE_STATES = {
  pending: ['waiting', 'waits'],
  approved: ['good', 'approved'],
  withdrawn: ['neutral', 'withdrawn'],
} as const;

function ChangeState({ state }: { state: Change['state'] }) {
  const [tone, word] = CHANGE_STATES[state];
  return <State tone={tone}>{word}</State>;
}
