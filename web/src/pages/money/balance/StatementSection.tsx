/** The account statement: each change of the balance with the balance after it; a whole span as CSV. */
import { Button, Checkbox, Group, Stack, Text, TextInput, Title } from '@mantine/core';
import { useInfiniteQuery, useMutation } from '@tanstack/react-query';
import { getRouteApi, useNavigate } from '@tanstack/react-router';

import { api, saveFile, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { FormProblem } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { Instant, Money } from '~/components/values';
import { dayOf, wholeDay } from '~/time/days';

import { allPages } from '../components/all_pages';
import { toCsv } from '../components/csv';
import { WordLink } from '../components/WordLink';

type Line = Schema<'StatementLineObject'>;

const PATH = '/admin/v1/tenants/{tenant}/statement';
const route = getRouteApi('/signed-in/tenants/$tenant/balance');

function columnsOf(tenant: string): Column<Line>[] {
  return [
    { header: 'At', cell: (line) => <Instant at={line.at} /> },
    { header: 'What', cell: (line) => <What line={line} tenant={tenant} /> },
    { header: 'Period', cell: (line) => line.period },
    { header: 'Note', cell: (line) => line.memo },
    { header: 'Amount', numeric: true, cell: (line) => <Money amount={line.amount} /> },
    { header: 'Balance after it', numeric: true, cell: (line) => <Money amount={line.balance} /> },
  ];
}

/** What changed the balance, as a link to the rows that make it. */
function What({ line, tenant }: { line: Line; tenant: string }) {
  const words = line.kind.replaceAll('_', ' ');
  if (line.kind === 'usage') {
    return (
      <WordLink to={`/tenants/${tenant}/usage` as '/'} search={wholeDay(dayOf(line.at))}>
        {words}
      </WordLink>
    );
  }
  if ((line.kind === 'invoice' || line.kind === 'return') && line.memo !== '') {
    return (
      // a `/` of the number would end the part of the path
      <WordLink to="/tenants/$tenant/invoices/$invoice" params={{ tenant, invoice: encodeURIComponent(line.memo) }}>
        {words}
      </WordLink>
    );
  }
  return <>{words}</>;
}

interface Span {
  from?: string;
  to?: string;
  every?: 'true';
}

export function StatementSection({ tenant }: { tenant: string }) {
  const span: Span = route.useSearch();
  const navigate = useNavigate();
  const set = (search: Span): void => void navigate({ to: '/tenants/$tenant/balance', params: { tenant }, search });
  const read = async (after: string | undefined, limit: number, signal?: AbortSignal) => {
    const search = {
      after,
      limit,
      since: span.from && `${span.from}T00:00:00Z`,
      until: span.to && `${span.to}T00:00:00Z`,
      every: span.every === 'true' ? true : undefined,
    };
    return (await api.GET(PATH, { params: { path: { tenant }, query: search }, signal })).data!;
  };
  const list = useInfiniteQuery({
    queryKey: ['get', PATH, tenant, span],
    queryFn: ({ pageParam, signal }) => read(pageParam, 50, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.next ?? undefined,
  });
  const file = useMutation({
    mutationFn: async () => {
      const lines = await allPages(
        (after: string | undefined) => read(after, 100),
        (page) => page.next,
      );
      const names = ['at', 'kind', 'period', 'memo', 'amount', 'balance', 'invoiced', 'carried'] as const;
      const text = toCsv(
        names,
        lines.map((line) => names.map((name) => line[name])),
      );
      saveFile(new Blob([text], { type: 'text/csv' }), `statement-${tenant}.csv`);
    },
  });
  return (
    <section aria-labelledby="statement">
      <Title order={2} id="statement" mb="xs">
        Statement
      </Title>
      <Stack gap="sm">
        <Group align="flex-end">
          <TextInput
            label="From"
            type="date"
            value={span.from ?? ''}
            onChange={({ currentTarget: { value } }) => set({ ...span, from: value || undefined })}
          />
          <TextInput
            label="Until (not included)"
            type="date"
            value={span.to ?? ''}
            onChange={({ currentTarget: { value } }) => set({ ...span, to: value || undefined })}
          />
          <Checkbox
            label="Each posting of usage"
            checked={span.every === 'true'}
            onChange={({ currentTarget: { checked } }) => set({ ...span, every: checked ? 'true' : undefined })}
          />
          <Button variant="default" loading={file.isPending} onClick={() => file.mutate()}>
            Download all as CSV
          </Button>
        </Group>
        <FormProblem error={file.error} />
        <Loaded query={list} what="the statement" height={240}>
          {({ pages }) => (
            <Stack gap="xs" align="flex-start">
              <div style={{ width: '100%' }}>
                <DataTable
                  caption={`Statement of ${tenant}, in ${pages[0]?.currency ?? ''}`}
                  columns={columnsOf(tenant)}
                  rows={pages.flatMap((page) => page.data)}
                  rowKey={(line) => line.id}
                  empty="Nothing changed the balance in this span."
                />
              </div>
              {list.hasNextPage && (
                <Button variant="default" loading={list.isFetchingNextPage} onClick={() => void list.fetchNextPage()}>
                  Show more
                </Button>
              )}
              <Text size="xs" c="dimmed">
                Amounts in {pages[0]?.currency}.{' '}
                {list.hasNextPage ? 'This is a part of the span; the file has all of it.' : 'This is the whole span.'}
              </Text>
            </Stack>
          )}
        </Loaded>
      </Stack>
    </section>
  );
}
