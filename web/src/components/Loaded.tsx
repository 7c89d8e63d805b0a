/**
 * What a query gave, in all its states: a skeleton after 150 ms, the data, the data with its age while it cannot be
 * refreshed, or the problem in the server's words with its request id.
 */
import { Alert, Button, Code, Group, Skeleton, Stack, Text } from '@mantine/core';
import { useInterval } from '@mantine/hooks';
import { type ReactNode, useEffect, useState } from 'react';

import { asProblem } from '~/api/problem';
import { displayDuration } from '~/time/instants';

const SHOWN_AFTER_MS = 150;

/** The parts of a query's result that are looked at. */
interface QueryState<Data> {
  data: Data | undefined;
  error: unknown;
  dataUpdatedAt: number;
  refetch: () => unknown;
}

interface LoadedProps<Data> {
  query: QueryState<Data>;
  children: (data: Data) => ReactNode;
  /** The height of the skeleton, in pixels: that of what will be there. */
  height?: number;
  /** What there is, for the texts: "the invoices". */
  what: string;
}

export function Loaded<Data>({ query, children, height = 160, what }: LoadedProps<Data>) {
  const { data, error } = query;
  if (data === undefined) {
    if (error !== null) return <Failure error={error} what={what} retry={() => void query.refetch()} />;
    return <Waiting height={height} what={what} />;
  }
  return (
    <>
      {error !== null && <Age since={query.dataUpdatedAt} error={error} />}
      {children(data)}
    </>
  );
}

/** A problem in the place of what could not be loaded. */
export function Failure({ error, what, retry }: { error: unknown; what: string; retry?: () => void }) {
  const problem = asProblem(error);
  return (
    <Alert color="red" variant="outline" title={`Cannot show ${what}`} role="alert">
      <Stack gap="xs" align="flex-start">
        <Text size="sm">{problem.message}</Text>
        {problem.requestId && (
          <Text size="xs">
            Request <Code>{problem.requestId}</Code>
          </Text>
        )}
        {retry !== undefined && (
          <Button size="xs" variant="default" onClick={retry}>
            Retry
          </Button>
        )}
      </Stack>
    </Alert>
  );
}

function Waiting({ height, what }: { height: number; what: string }) {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), SHOWN_AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div aria-busy="true" aria-label={`Loading ${what}`} role="status" style={{ minHeight: height }}>
      {shown && <Skeleton height={height} />}
    </div>
  );
}

function Age({ since, error }: { since: number; error: unknown }) {
  const [now, setNow] = useState(() => Date.now());
  useInterval(() => setNow(Date.now()), 1_000, { autoInvoke: true });
  return (
    <Group gap="xs" role="status" mb="xs">
      <Text size="xs" c="dimmed">
        As of {displayDuration(Math.max(0, now - since))} ago. {asProblem(error).message} It is tried again by itself.
      </Text>
    </Group>
  );
}
