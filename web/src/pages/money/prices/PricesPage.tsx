/** Prices: what waits for approval with what it changes, the grid of each model in a book, the history, the books. */
import { Badge, Card, Group, NativeSelect, Stack, Text, TextInput, Title } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { getRouteApi, useNavigate } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import { useTenants } from '~/app/TenantSwitcher';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant, State } from '~/components/values';

import { ActionDialog } from '../components/ActionDialog';
import { WordLink } from '../components/WordLink';
import { DifferenceTable, PriceGrid } from './PriceGrid';
import { SheetDecision } from './SheetDecision';
import { SheetImpact } from './SheetImpact';

type Sheet = Schema<'SheetObject'>;

const PRICES = '/admin/v1/prices';
const BOOKS = '/admin/v1/prices/books';
const SHEETS = '/admin/v1/prices/sheets';
const SHEET = '/admin/v1/prices/sheets/{number}';
const BASE = 'base';
const route = getRouteApi('/signed-in/platform/prices');

const STATE_TONES: Record<string, 'good' | 'waiting' | 'neutral'> = {
  draft: 'waiting',
  scheduled: 'waiting',
  active: 'good',
};

export function SheetState({ state }: { state: string }) {
  return <State tone={STATE_TONES[state] ?? 'neutral'}>{state}</State>;
}

export function PricesPage() {
  const me = useMe();
  const { book, at } = route.useSearch();
  return (
    <Page
      title="Prices"
      about="In units of currency per 1,000,000 units. One person proposes a change, and another approves it."
      actions={
        may(me, 'prices.propose') && (
          <>
            <WordLink to="/platform/prices/new" search={{ book }}>
              Propose prices
            </WordLink>
            <NewBook />
          </>
        )
      }
    >
      <Stack gap="xl">
        <Waiting />
        <Grids book={book} at={at} />
        <History book={book} />
        <Books />
      </Stack>
    </Page>
  );
}

/** The drafts, each with what it changes and the decision: nothing else has to be opened to approve one. */
function Waiting() {
  const drafts = query.useQuery('get', SHEETS, { params: { query: { state: 'draft', limit: 20 } } });
  return (
    <section aria-labelledby="waiting">
      <Title order={2} id="waiting" mb="xs">
        Waiting for approval
      </Title>
      <Loaded query={drafts} what="the drafts" height={80}>
        {({ data }) =>
          data.length === 0 ? (
            <Text c="dimmed">No draft waits.</Text>
          ) : (
            <Stack>
              {data.map((draft) => (
                <Draft key={draft.id} number={draft.id} />
              ))}
            </Stack>
          )
        }
      </Loaded>
    </section>
  );
}

function Draft({ number }: { number: number }) {
  const sheet = query.useQuery('get', SHEET, { params: { path: { number } } });
  return (
    <Loaded query={sheet} what={`sheet ${number}`} height={200}>
      {(found) => (
        <Card withBorder>
          <Stack gap="sm">
            <Group gap="xs">
              <WordLink to="/platform/prices/sheets/$number" params={{ number: String(number) }}>
                Sheet {number}
              </WordLink>
              <Text size="sm">
                {found.model}, book {found.book}, by {found.author}
                {found.reason && `: ${found.reason}`}
              </Text>
              {found.forced !== null && (
                <Badge variant="default" tt="none" miw="max-content">
                  unusual: {found.forced}
                </Badge>
              )}
            </Group>
            <Text size="sm">
              Takes effect {found.effective_at === null ? 'when it is approved' : <Instant at={found.effective_at} />}
              {found.effective_until !== null && (
                <>
                  {' '}
                  until <Instant at={found.effective_until} />
                </>
              )}
              .
            </Text>
            <SheetImpact number={number} />
            <SheetDecision sheet={found} />
            <DifferenceTable caption={`What sheet ${number} changes, in ${found.currency}`} rows={found.difference} />
          </Stack>
        </Card>
      )}
    </Loaded>
  );
}

function Grids({ book, at }: { book?: string; at?: string }) {
  const navigate = useNavigate();
  const me = useMe();
  const books = query.useQuery('get', BOOKS, { params: { query: { limit: 100 } } });
  const prices = query.useQuery('get', PRICES, { params: { query: { book, at: at && `${at}T00:00:00Z` } } });
  const set = (search: { book?: string; at?: string }): void => void navigate({ to: '/platform/prices', search });
  const names = [...new Set([BASE, ...(books.data?.data ?? []).map((one) => one.name)])];
  return (
    <section aria-labelledby="grids">
      <Title order={2} id="grids" mb="xs">
        Prices in force
      </Title>
      <Stack>
        <Group align="flex-end">
          <NativeSelect
            label="Book"
            data={names}
            value={book ?? BASE}
            onChange={({ currentTarget: { value } }) => set({ at, book: value === BASE ? undefined : value })}
          />
          <TextInput
            label="On (UTC)"
            type="date"
            value={at ?? ''}
            onChange={({ currentTarget: { value } }) => set({ book, at: value || undefined })}
          />
        </Group>
        <Loaded query={prices} what="the prices" height={320}>
          {({ data, at: instant }) =>
            data.length === 0 ? (
              <Text c="dimmed">The book had no prices then.</Text>
            ) : (
              <Stack>
                {data.map((model) => (
                  <section key={model.model} aria-label={`Prices of ${model.model}`}>
                    <Group gap="xs">
                      <Title order={3}>{model.model}</Title>
                      <Text size="sm" c="dimmed">
                        {model.currency}, version {model.version}, since <Instant at={model.effective_at} />
                      </Text>
                      {may(me, 'prices.propose') && (
                        <WordLink to="/platform/prices/new" search={{ book, model: model.model }} fz="sm">
                          Propose a change of {model.model}
                        </WordLink>
                      )}
                    </Group>
                    <PriceGrid caption={`Prices of ${model.model}`} cells={model.prices} />
                  </section>
                ))}
                <Text size="xs" c="dimmed">
                  As of <Instant at={instant} />.
                </Text>
              </Stack>
            )
          }
        </Loaded>
      </Stack>
    </section>
  );
}

const HISTORY: Column<Sheet & { key: string }>[] = [
  {
    header: 'Sheet',
    cell: (sheet) => (
      <WordLink to="/platform/prices/sheets/$number" params={{ number: String(sheet.id) }}>
        {sheet.id}
      </WordLink>
    ),
  },
  { header: 'State', cell: (sheet) => <SheetState state={sheet.state} /> },
  { header: 'Model', cell: (sheet) => sheet.model },
  { header: 'Book', cell: (sheet) => sheet.book },
  { header: 'From', cell: (sheet) => <Instant at={sheet.effective_at} /> },
  { header: 'Until', cell: (sheet) => <Instant at={sheet.effective_until} /> },
  { header: 'Author', cell: (sheet) => sheet.author },
  { header: 'Reason', cell: (sheet) => sheet.reason },
];

function History({ book }: { book?: string }) {
  return (
    <section aria-labelledby="history">
      <Title order={2} id="history" mb="xs">
        History
      </Title>
      <PagedTable
        caption="Price sheets, newest first"
        what="the price sheets"
        columns={HISTORY as unknown as Column<{ id: string }>[]}
        empty="No prices were ever proposed in this book."
        queryKey={['get', SHEETS, 'history', book]}
        read={async (after, signal) => {
          const search = { book, after: after === undefined ? undefined : Number(after), limit: 20 };
          const page = (await api.GET(SHEETS, { params: { query: search }, signal })).data!;
          return { ...page, data: page.data.map((sheet) => ({ ...sheet, id: String(sheet.id) })) };
        }}
      />
    </section>
  );
}

function Books() {
  const tenants = useTenants() ?? [];
  const nameOf = (id: string): string => tenants.find((tenant) => tenant.id === id)?.name ?? id;
  const books = query.useQuery('get', BOOKS, { params: { query: { limit: 100 } } });
  return (
    <section aria-labelledby="books">
      <Title order={2} id="books" mb="xs">
        Books
      </Title>
      <Loaded query={books} what="the books" height={120}>
        {({ data }) => (
          <DataTable
            caption="Price books"
            columns={[
              {
                header: 'Book',
                cell: (one) => (
                  <WordLink to="/platform/prices" search={{ book: one.name === BASE ? undefined : one.name }}>
                    {one.name}
                  </WordLink>
                ),
              },
              { header: 'Currency', cell: (one) => one.currency },
              { header: 'Over', cell: (one) => one.base ?? '–' },
              { header: 'Only for', cell: (one) => (one.tenant_id ? nameOf(one.tenant_id) : 'everybody') },
            ]}
            rows={data}
            rowKey={(one) => one.name}
            empty="There are no books yet: the first is made with the first prices."
          />
        )}
      </Loaded>
    </section>
  );
}

function NewBook() {
  const queries = useQueryClient();
  return (
    <ActionDialog
      label="New book"
      title="New price book"
      about="A base book in a currency, or a tenant's own book over a base book, in that book's currency."
      fields={[
        { name: 'name', label: 'Name', required: true },
        { name: 'currency', label: 'Currency', about: 'Of a base book: three letters (ISO 4217).' },
        { name: 'tenant', label: 'Tenant', about: "Of a tenant's own book: its name." },
        { name: 'base', label: 'Over the book', about: "Of a tenant's own book; the base book without it." },
      ]}
      action="Add"
      run={async (values) => {
        const body = {
          name: values.name!,
          currency: values.currency || null,
          tenant: values.tenant || null,
          base: values.base || null,
        };
        return (await api.POST(BOOKS, { body })).data!;
      }}
      done="The book was added."
      onDone={() => void queries.invalidateQueries({ queryKey: ['get', BOOKS] })}
    />
  );
}
