/** An answer as it comes, then its tokens by class, its cost, and where the request is. */
import { Anchor, Paper, Stack, Text, Title } from '@mantine/core';
import { Link } from '@tanstack/react-router';

import { type Fact, Facts } from '~/components/Facts';
import { Money } from '~/components/values';
import { displayCount } from '~/money/decimal';

import type { AnswerState } from './Playground';
import type { Usage } from './stream';

export function Answer({ tenant, answer, requestId }: { tenant: string; answer: AnswerState; requestId: string }) {
  const { told, running } = answer;
  return (
    <Stack>
      <Paper withBorder p="md" component="section" aria-label="Answer">
        <Title order={2} size="h4">
          Answer
        </Title>
        <Text className="wraps" style={{ whiteSpace: 'pre-wrap' }} aria-busy={running}>
          {told.text}
        </Text>
        <Text size="sm" c="dimmed" role="status">
          {statusOf(answer)}
        </Text>
        {!running && requestId !== '' && (
          <Text size="sm">
            <Anchor component={Link} to={`/tenants/${tenant}/requests/${requestId}`} size="sm" underline="always">
              The request: its waterfall, its cost, and why its prompt missed the cache
            </Anchor>
          </Text>
        )}
      </Paper>
      {told.usage !== undefined && <Facts label="What it was" facts={factsOf(told.usage)} />}
    </Stack>
  );
}

function statusOf({ running, stopped, error, told }: AnswerState): string {
  if (running) return 'It is being answered.';
  if (stopped) return 'Stopped. What was answered until then is billed; the request shows it in some seconds.';
  if (error !== null) return 'It ended early.';
  return told.finishReason === 'length' ? 'It ended at the most output tokens.' : 'It is complete.';
}

function factsOf(usage: Usage): Fact[] {
  const { cached_tokens: read, cache_write_tokens: written = 0 } = usage.prompt_tokens_details;
  return [
    { name: 'Cost', value: <Money amount={usage.cost.amount} currency={usage.cost.currency} places={6} /> },
    { name: 'Uncached prompt tokens', value: displayCount(usage.prompt_tokens - read - written) },
    { name: 'Read from the cache', value: displayCount(read) },
    { name: 'Written to the cache', value: displayCount(written) },
    { name: 'Output tokens', value: displayCount(usage.completion_tokens) },
  ];
}
