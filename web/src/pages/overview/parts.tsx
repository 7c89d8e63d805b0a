/** What the overviews of one tenant and of all have in common. */
import { Anchor, List, Title } from '@mantine/core';
import { Link } from '@tanstack/react-router';

import type { Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Remark } from '~/components/Remark';
import { displayCount } from '~/money/decimal';

type Notice = Schema<'Notice'>;
type Service = Schema<'ServiceObject'>;
type Lane = Service['queue'][number];

/** The page on which one does something about a notice. */
const PAGES: Partial<Record<Notice['code'], string>> = {
  budget_near: 'budgets',
  budget_exhausted: 'budgets',
  balance_exhausted: 'balance',
  key_expiring: 'keys',
  webhook_disabled: 'webhooks',
  usage_unsettled: 'requests',
};
const PLATFORM_PAGES: Partial<Record<Notice['code'], string>> = {
  approval_waiting: '/platform/approvals',
  replica_down: '/platform/fleet',
  disk_full: '/platform/fleet',
  spool_waiting: '/platform/fleet',
};

/** Where somebody does something about a notice; undefined where no page is for it. */
export function placeOf(notice: Notice, tenant?: string): string | undefined {
  const page = PAGES[notice.code];
  const whose = tenant ?? notice.tenant_id;
  if (page !== undefined && whose !== null && whose !== undefined) return `/tenants/${whose}/${page}`;
  return PLATFORM_PAGES[notice.code];
}

/** Notices, the errors first. Nothing where there are none. */
export function Notices({ notices, tenant }: { notices: Notice[]; tenant?: string }) {
  if (notices.length === 0) return null;
  const sorted = [...notices].sort((one, other) => one.severity.localeCompare(other.severity));
  return (
    <Remark title={`${notices.length === 1 ? 'One thing' : `${notices.length} things`} to look at`}>
      <List size="sm">
        {sorted.map((notice, place) => {
          const to = placeOf(notice, tenant);
          return (
            <List.Item key={`${notice.code} ${notice.subject} ${place}`}>
              {notice.severity === 'error' ? <strong>Error: </strong> : ''}
              {notice.text}{' '}
              {to !== undefined && (
                <Anchor
                  component={Link}
                  {...({ to } as object)}
                  size="sm"
                  underline="always"
                  aria-label={`Look at it: ${notice.text}`}
                >
                  Look at it
                </Anchor>
              )}
            </List.Item>
          );
        })}
      </List>
    </Remark>
  );
}

/** How long requests waited in queues, by lane. */
export function QueueWaits({ service }: { service: Service }) {
  const columns: Column<Lane>[] = [
    { header: 'Lane', cell: (lane) => lane.lane },
    { header: 'Requests', numeric: true, cell: (lane) => displayCount(lane.requests) },
    { header: 'Half waited at most', numeric: true, cell: (lane) => displayMilliseconds(lane.p50_ms) },
    { header: '99 % waited at most', numeric: true, cell: (lane) => displayMilliseconds(lane.p99_ms) },
  ];
  return (
    <section aria-label="Waiting in queues">
      <Title order={2}>Waiting in queues, last 24 hours</Title>
      <DataTable
        caption="Waits in queues by lane"
        columns={columns}
        rows={service.queue}
        rowKey={(lane) => lane.lane}
        empty="No request was queued in the last 24 hours."
      />
    </section>
  );
}

/** Of how many requests the time to the first token is, and how long nearly all of them waited for it. */
export function firstTokenNote({ first_token: { requests, p99_ms } }: Pick<Service, 'first_token'>): string {
  if (requests === 0) return 'no request in the last 24 hours';
  return `median of ${displayCount(requests)} requests; 99 % within ${displayMilliseconds(p99_ms)}`;
}

/** A duration that was measured in milliseconds; a dash where nothing was. */
export function displayMilliseconds(milliseconds: number | null): string {
  if (milliseconds === null) return '–';
  if (milliseconds < 1_000) return `${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)}\u00a0ms`;
  return `${(milliseconds / 1_000).toFixed(1)}\u00a0s`;
}
