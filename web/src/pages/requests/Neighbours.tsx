/** The requests before and after one in the list, with the list's filters. */
import { Button, Group } from '@mantine/core';

import { query } from '~/api/client';

import { listQuery, type RequestFilters } from './search';

const PATH = '/admin/v1/tenants/{tenant}/requests';

interface NeighboursProps {
  tenant: string;
  /** The place of the request in the list; undefined while it is in none. */
  cursor: string | undefined;
  filters: RequestFilters;
  go: (id: string) => void;
}

export function Neighbours({ tenant, cursor, filters, go }: NeighboursProps) {
  const options = { enabled: cursor !== undefined, refetchInterval: false as const };
  const at = (place: { after?: string; before?: string }) => ({
    params: { path: { tenant }, query: { ...listQuery(filters), ...place, limit: 1 } },
  });
  const newer = query.useQuery('get', PATH, at({ before: cursor }), options).data?.data[0];
  const older = query.useQuery('get', PATH, at({ after: cursor }), options).data?.data[0];
  return (
    <Group gap="xs">
      <Button size="xs" variant="default" disabled={newer === undefined} onClick={() => newer && go(newer.id)}>
        Newer
      </Button>
      <Button size="xs" variant="default" disabled={older === undefined} onClick={() => older && go(older.id)}>
        Older
      </Button>
    </Group>
  );
}
