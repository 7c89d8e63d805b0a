/** Whole pages for what cannot be shown: not found, not allowed, not reachable. */
import { Button, Code, Stack, Text } from '@mantine/core';
import { useQueryErrorResetBoundary } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { useEffect } from 'react';

import { asProblem } from '~/api/problem';

import { Page } from './Page';

const RETRY_MS = 3_000;

export function ProblemPage({ error, retry }: { error: unknown; retry: () => void }) {
  const problem = asProblem(error);
  const { reset } = useQueryErrorResetBoundary();
  const { transient } = problem;
  useEffect(() => {
    if (!transient) return undefined;
    const timer = setInterval(() => {
      reset();
      retry();
    }, RETRY_MS);
    return () => clearInterval(timer);
  }, [transient, reset, retry]);
  if (problem.status === 404) return <NotFoundPage />;
  const title = problem.status === 403 ? 'You may not see this' : 'This page could not be loaded';
  return (
    <Page title={title}>
      <Stack align="flex-start" role="alert">
        <Text>{problem.message}</Text>
        {problem.requestId && (
          <Text size="sm">
            Request <Code>{problem.requestId}</Code>
          </Text>
        )}
        <Button
          onClick={() => {
            reset();
            retry();
          }}
        >
          Try again
        </Button>
      </Stack>
    </Page>
  );
}

export function NotFoundPage() {
  return (
    <Page title="There is no such page">
      <Stack align="flex-start">
        <Text>It does not exist, or you may not see it.</Text>
        <Button component={Link} to="/">
          To the start
        </Button>
      </Stack>
    </Page>
  );
}
