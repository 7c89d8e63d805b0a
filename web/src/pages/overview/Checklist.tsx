/** The first steps of a new tenant: a key, a request, and that it arrives here. */
import { Anchor, Code, List, Paper, Stack, Text, ThemeIcon, Title } from '@mantine/core';
import { IconCheck, IconCircleDashed } from '@tabler/icons-react';
import { Link } from '@tanstack/react-router';

import type { Schema } from '~/api/client';

import { firstCall } from '../usage/FirstRequest';

export function Checklist({ tenant, started }: { tenant: string; started: Schema<'Started'> }) {
  return (
    <Paper withBorder p="md" component="section" aria-label="First steps">
      <Title order={2}>First steps</Title>
      <List mt="sm" spacing="sm" size="sm" type="ordered" listStyleType="none">
        <List.Item icon={<Mark done={started.key} />}>
          Make a key for a project, and keep its secret:{' '}
          <Anchor component={Link} {...({ to: `/tenants/${tenant}/keys` } as object)} size="sm" underline="always">
            Keys
          </Anchor>
        </List.Item>
        <List.Item icon={<Mark done={started.request} />}>
          <Stack gap={4}>
            <Text size="sm">
              Send a request with it, after <Code>export TURNPIKE_API_KEY=…</Code>:
            </Text>
            <Code block>{firstCall(location.origin)}</Code>
          </Stack>
        </List.Item>
        <List.Item icon={<Mark done={started.request} />}>
          <span role="status">
            {started.request
              ? 'The first request has arrived.'
              : 'Waiting for the first request. It appears here by itself.'}
          </span>
        </List.Item>
      </List>
    </Paper>
  );
}

function Mark({ done }: { done: boolean }) {
  return (
    <ThemeIcon variant="outline" color={done ? 'teal.9' : 'gray.7'} size="sm" radius="xl">
      {done ? <IconCheck size={14} aria-label="done" /> : <IconCircleDashed size={14} aria-label="to do" />}
    </ThemeIcon>
  );
}
