/** Why a prompt missed the cache: each run of tokens with its cause, where it is in the request, and what it cost. */
import { Anchor, Code, Stack, Text } from '@mantine/core';
import { Link } from '@tanstack/react-router';

import type { Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Money } from '~/components/values';
import { displayCount } from '~/money/decimal';

type Explanation = Schema<'CacheExplanation'>;
type Miss = Schema<'MissObject'>;

export function MissExplanation({ explanation, tenant }: { explanation: Explanation | null; tenant: string }) {
  if (explanation === null) {
    return (
      <Text size="sm" c="dimmed">
        Nothing is kept of what the cache did: the prompt was too short to be cached, or it is more than two days ago.
      </Text>
    );
  }
  const currency = explanation.currency ?? undefined;
  const columns: Column<Miss>[] = [
    { header: 'Cause', cell: (miss) => miss.cause.replaceAll('_', ' ') },
    { header: 'Where', cell: (miss) => <Code className="wraps">{miss.path}</Code> },
    { header: 'Tokens', cell: (miss) => `${displayCount(miss.start)}–${displayCount(miss.end)}`, numeric: true },
    {
      header: 'Differs at token',
      cell: (miss) => (miss.differs_at === null ? '–' : displayCount(miss.differs_at)),
      numeric: true,
    },
    {
      header: 'Against',
      cell: (miss) => (miss.against === null ? '–' : <RequestLink tenant={tenant} id={miss.against} />),
    },
    {
      header: 'Cost beyond a read',
      cell: (miss) => (miss.cost === null ? '–' : <Money amount={miss.cost} currency={currency} places={6} />),
      numeric: true,
    },
    { header: 'What to do', cell: advice },
  ];
  return (
    <Stack gap="xs">
      <Text size="sm">
        {displayCount(explanation.read_tokens)} of {displayCount(explanation.prompt_tokens)} prompt tokens were read
        from the cache, {displayCount(explanation.missed_tokens)} were not
        {explanation.missed_cost !== null && (
          <>
            , which cost <Money amount={explanation.missed_cost} currency={currency} places={6} /> beyond reads
          </>
        )}
        .
      </Text>
      <DataTable
        caption="Why tokens of the prompt missed"
        columns={columns}
        rows={explanation.misses}
        rowKey={(miss) => `${miss.start}-${miss.cause}`}
        empty="Nothing missed."
      />
    </Stack>
  );
}

/** A link to another request of the tenant. */
export function RequestLink({ tenant, id }: { tenant: string; id: string }) {
  return (
    <Anchor component={Link} to={`/tenants/${tenant}/requests/${id}`} size="sm" className="wraps">
      {id}
    </Anchor>
  );
}

function advice(miss: Miss): string {
  const longer = miss.longer_ttl;
  if (longer === null) return miss.advice;
  return `${miss.advice} A lease of ${longer.ttl} would have cost ${longer.premium} more and saved ${longer.saved}.`;
}
