/** The requests of a tenant, newest first; one of them beside the list, with its waterfall. */
import { Anchor, Code, Drawer, Stack, Text } from '@mantine/core';
import { getRouteApi, Link, useRouter } from '@tanstack/react-router';
import type { ReactNode } from 'react';

import { api, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant, Money, State } from '~/components/values';
import { displayCount, parseAmount } from '~/money/decimal';
import { displayDuration } from '~/time/instants';

import { FilterBar } from './FilterBar';
import { FindRequest } from './FindRequest';
import { Neighbours } from './Neighbours';
import { RequestView, useRequestDetails } from './RequestView';
import { RunningRequests } from './RunningRequests';
import { listQuery, type RequestFilters, requestsSearch } from './search';

type Listed = Schema<'RequestObject'>;
const PATH = '/admin/v1/tenants/{tenant}/requests';
const route = getRouteApi('/signed-in/tenants/$tenant/requests');
const TONES: Record<string, 'good' | 'bad' | 'neutral'> = { ok: 'good', failed: 'bad' };

export function RequestsPage() {
  const { tenant } = route.useParams();
  const { open, ...filters } = route.useSearch({ select: (search) => requestsSearch({ ...search }) });
  const navigate = route.useNavigate();
  const show = (id?: string): void => void navigate({ search: (now) => ({ ...now, open: id }), resetScroll: false });
  const links = useLinks(show);
  return (
    <Page title="Requests" about="What was asked, newest first, and where the time of each request went.">
      <Stack gap="sm">
        <FilterBar
          key={JSON.stringify(filters)}
          tenant={tenant}
          filters={filters}
          apply={(search) => void navigate({ search })}
        />
        <FindRequest />
        <RunningRequests tenant={tenant} />
        <PagedTable
          caption={`Requests of ${tenant}`}
          what="the requests"
          columns={columns(links)}
          empty={<Empty filtered={Object.keys(filters).length > 0} />}
          queryKey={['get', PATH, tenant, filters]}
          read={async (after, signal) => {
            const params = { path: { tenant }, query: { ...listQuery(filters), after, limit: 100 } };
            return (await api.GET(PATH, { params, signal })).data!;
          }}
        />
      </Stack>
      <Drawer
        opened={open !== undefined}
        onClose={() => show()}
        position="right"
        size="xl"
        title="Request"
        closeButtonProps={{ 'aria-label': 'Close the request' }}
      >
        {open !== undefined && <Opened key={open} tenant={tenant} name={open} filters={filters} go={show} />}
      </Drawer>
    </Page>
  );
}

interface OpenedProps {
  tenant: string;
  name: string;
  filters: RequestFilters;
  go: (id: string) => void;
}

function Opened({ tenant, name, filters, go }: OpenedProps) {
  const details = useRequestDetails(tenant, name).data;
  return (
    <Stack>
      <Neighbours tenant={tenant} cursor={details?.request?.cursor} filters={filters} go={go} />
      <Anchor component={Link} to={`/tenants/${tenant}/requests/${name}`} search={filters as never} size="sm">
        Open on a page of its own
      </Anchor>
      <RequestView tenant={tenant} name={name} />
    </Stack>
  );
}

function Empty({ filtered }: { filtered: boolean }) {
  if (filtered) return <Text c="dimmed">No request fits these filters.</Text>;
  return (
    <Stack gap="xs" align="flex-start">
      <Text c="dimmed">There are no requests yet. The first comes with a key of a project:</Text>
      <Code block className="wraps" tabIndex={0}>
        {`curl ${window.location.origin}/v1/chat/completions -H "authorization: Bearer $TURNPIKE_API_KEY" ` +
          `-d '{"model": "MODEL", "messages": [{"role": "user", "content": "Hello"}]}'`}
      </Code>
    </Stack>
  );
}

/** How a row opens its request. A router's link in each of a thousand rows takes a second of work. */
interface Links {
  href: (id: string) => string;
  open: (id: string) => void;
}

function useLinks(open: (id: string) => void): Links {
  const router = useRouter();
  const pattern = router.buildLocation({ to: '.', search: ((now: object) => ({ ...now, open: 'ID' })) as never }).href;
  return { href: (id) => pattern.replace('open=ID', `open=${id}`), open };
}

function columns(links: Links): Column<Listed>[] {
  return [
    {
      header: 'Time',
      cell: (one) => (
        <a
          className="small"
          href={links.href(one.id)}
          onClick={(event) => {
            if (event.metaKey || event.ctrlKey || event.shiftKey) return; // another tab or window
            event.preventDefault();
            links.open(one.id);
          }}
        >
          <Instant at={one.admitted_at} />
        </a>
      ),
    },
    {
      header: 'Model',
      cell: (one) => <TwoLines first={<span className="unbroken">{one.model}</span>} second={one.lane} />,
      sort: (one) => `${one.model} ${one.lane}`,
    },
    { header: 'Status', cell: (one) => <State tone={TONES[one.status] ?? 'neutral'}>{shownStatus(one)}</State> },
    tokenColumn('Uncached', (meter) => meter === 'uncached'),
    tokenColumn('Read', (meter) => meter.startsWith('read_')),
    tokenColumn('Written', (meter) => meter.startsWith('write_')),
    tokenColumn('Output', (meter) => meter === 'output'),
    {
      header: 'Cost',
      cell: (one) => <Money amount={one.cost} currency={one.currency} places={6} />,
      numeric: true,
      sort: (one) => parseAmount(one.cost),
    },
    {
      header: 'First token',
      cell: (one) => (one.first_token_us === null ? '–' : displayDuration(one.first_token_us / 1_000)),
      numeric: true,
      sort: (one) => one.first_token_us,
    },
    {
      header: 'Total',
      cell: (one) => displayDuration(one.total_ms),
      numeric: true,
      sort: (one) => one.total_ms,
    },
    {
      header: 'Key',
      cell: (one) => <TwoLines first={one.key_name || (one.key ?? '–')} second={one.project ?? one.project_id} />,
      sort: (one) => one.key_name || one.key,
    },
  ];
}

/** A value above what it belongs to: what the table has no room for beside each other. */
function TwoLines({ first, second }: { first: ReactNode; second: string }) {
  return (
    <>
      <div>{first}</div>
      <div className="belongs">{second}</div>
    </>
  );
}

function shownStatus(one: Listed): string {
  return one.corrects === null ? one.status : 'adjustment';
}

function tokenColumn(header: string, wanted: (meter: string) => boolean): Column<Listed> {
  const count = (one: Listed): number =>
    Object.entries(one.tokens).reduce((sum, [meter, tokens]) => (wanted(meter) ? sum + tokens : sum), 0);
  return {
    header,
    cell: (one) => (count(one) === 0 ? '–' : displayCount(count(one))),
    numeric: true,
    sort: count,
  };
}
