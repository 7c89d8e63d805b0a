/**
 * A table of a list that the API pages by `limit` and `after`; "Show more" asks for the next page. How many pages are
 * read stands in the URL. Where `shown` leaves out most of what was read, it reads on until a screen is full.
 */
import { Button, Stack, Text } from '@mantine/core';
import { useInfiniteQuery } from '@tanstack/react-query';
import { useEffect, useState } from 'react';

import { type Column, DataTable } from './DataTable';
import { useListView } from './list_view';
import { Loaded } from './Loaded';

const FULL_SCREEN = 50;

interface ListPage<Row> {
  data: Row[];
  has_more: boolean;
  /** The cursor of the next page, where that is not the last object's id. */
  next?: string | null;
}

interface PagedTableProps<Row extends { id: string }> {
  caption: string;
  what: string;
  columns: Column<Row>[];
  empty: React.ReactNode;
  /** What tells this list from others: the path and all filters. */
  queryKey: readonly unknown[];
  /** Which of the rows that were read are shown; without it all. */
  shown?: (row: Row) => boolean;
  /** Reads the page after an object's id, or a cursor; the first page for undefined. */
  read: (after: string | undefined, signal: AbortSignal) => Promise<ListPage<Row>>;
}

export function PagedTable<Row extends { id: string }>(props: PagedTableProps<Row>) {
  const [{ pages: wanted = 1 }, setView] = useListView();
  const list = useInfiniteQuery({
    queryKey: props.queryKey,
    queryFn: ({ pageParam, signal }) => props.read(pageParam, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => (last.has_more ? (last.next ?? last.data.at(-1)?.id) : undefined),
  });
  const { error, fetchNextPage, hasNextPage, isFetching } = list;
  const pages = list.data?.pages.length ?? 0;
  // Pages on their way to those of the URL are drawn together: each would draw all rows before it once more.
  const [drawn, setDrawn] = useState(1);
  const behind = hasNextPage && pages < wanted;
  if (!behind && drawn !== pages) setDrawn(pages);
  const read = list.data?.pages.slice(0, Math.max(1, drawn)).flatMap((page) => page.data) ?? [];
  const rows = props.shown === undefined ? read : read.filter(props.shown);
  const readsOn = behind || (hasNextPage && props.shown !== undefined && rows.length < FULL_SCREEN);
  useEffect(() => {
    if (readsOn && !isFetching && error === null) void fetchNextPage();
  }, [readsOn, isFetching, error, pages, fetchNextPage]);
  return (
    <Loaded query={list} what={props.what}>
      {() => (
        <Stack gap="xs" align="flex-start">
          <div style={{ width: '100%' }}>
            <DataTable
              caption={props.caption}
              columns={props.columns}
              rows={rows}
              rowKey={(row) => row.id}
              empty={props.empty}
            />
          </div>
          {hasNextPage && (
            <Button variant="default" loading={readsOn} onClick={() => setView({ pages: pages + 1 })}>
              Show more
            </Button>
          )}
          {read.length > 0 && (
            <Text size="xs" c="dimmed" aria-live="polite">
              {countOf(rows.length, read.length, hasNextPage)}
            </Text>
          )}
        </Stack>
      )}
    </Loaded>
  );
}

function countOf(shown: number, read: number, more: boolean): string {
  if (shown < read) return `${shown} of ${more ? 'the first ' : ''}${read} are shown.`;
  return more ? `The first ${shown} are shown.` : `All ${shown} are shown.`;
}
