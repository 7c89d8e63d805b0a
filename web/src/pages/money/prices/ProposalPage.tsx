/** Proposing prices: the grid in force is edited, and what it changes is shown before it is saved as a draft. */
import { Button, Group, NativeSelect, Table, Text, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { getRouteApi, useNavigate } from '@tanstack/react-router';
import { useState } from 'react';

import { api, query, type Schema } from '~/api/client';
import { Problem } from '~/api/problem';
import { fieldError, Form } from '~/components/forms';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';

import { cellKey, columnName, meterName, microOf } from './grid';
import { DifferenceTable } from './PriceGrid';

const SHEETS = '/admin/v1/prices/sheets';
const BASE = 'base';
const LANES = ['*', 'interactive', 'standard', 'batch'];
const route = getRouteApi('/signed-in/platform/prices/new');

interface EditedCell {
  meter: string;
  lane: string;
  contextFrom: string;
  price: string;
}

export function ProposalPage() {
  const { book, model } = route.useSearch();
  const prices = query.useQuery('get', '/admin/v1/prices', { params: { query: { book } } }, { refetchInterval: false });
  return (
    <Page
      title="Propose prices"
      about="It is saved as a draft. It applies once another person has approved it, from the instant that it names."
    >
      <Loaded query={prices} what="the prices in force" height={400}>
        {({ data }) => {
          const chosen = data.find((one) => one.model === model) ?? (model === undefined ? data[0] : undefined);
          return (
            <Proposal
              key={`${book} ${chosen?.model}`}
              book={book ?? BASE}
              models={data.map((one) => one.model)}
              model={chosen?.model ?? model ?? ''}
              cells={(chosen?.prices ?? []).map(({ meter, lane, context_from, price }) => ({
                meter,
                lane,
                contextFrom: String(context_from),
                price: price.replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, ''),
              }))}
            />
          );
        }}
      </Loaded>
    </Page>
  );
}

interface ProposalProps {
  book: string;
  models: string[];
  model: string;
  cells: EditedCell[];
}

function Proposal({ book, models, model, cells: inForce }: ProposalProps) {
  const navigate = useNavigate();
  const queries = useQueryClient();
  const books = query.useQuery('get', '/admin/v1/prices/books', { params: { query: { limit: 100 } } });
  const [cells, setCells] = useState(inForce);
  const [rest, setRest] = useState({
    model,
    effective_at: '',
    effective_until: '',
    reason: '',
    force: '',
    kind: 'whole',
  });
  const bookNames = [...new Set([BASE, ...(books.data?.data ?? []).map((one) => one.name)])];
  const send = useMutation({
    mutationFn: async (dryRun: boolean) => {
      const body: Schema<'NewSheet'> = {
        model: rest.model,
        book,
        kind: rest.kind as 'whole' | 'overrides',
        prices: priceCells(cells),
        effective_at: rest.effective_at ? `${rest.effective_at}:00Z` : null,
        effective_until: rest.effective_until ? `${rest.effective_until}:00Z` : null,
        reason: rest.reason,
        force: rest.force || null,
        dry_run: dryRun,
      };
      return (await api.POST(SHEETS, { body })).data!;
    },
    onSuccess: async (answer) => {
      if (answer.object !== 'price_sheet') return;
      await queries.invalidateQueries({ predicate: ({ queryKey }) => /prices/.test(String(queryKey[1])) });
      void navigate({ to: '/platform/prices/sheets/$number', params: { number: String(answer.id) } });
    },
  });
  const set = (changed: Partial<typeof rest>): void => {
    send.reset();
    setRest({ ...rest, ...changed });
  };
  const setCell = (index: number, changed: Partial<EditedCell>): void => {
    send.reset();
    setCells(cells.map((cell, n) => (n === index ? { ...cell, ...changed } : cell)));
  };
  const check = send.data?.object === 'price_sheet.check' ? send.data : undefined;
  return (
    <Form
      submit={() => send.mutate(false)}
      error={send.error}
      pending={send.isPending && !send.variables}
      action="Save the draft"
      buttons={
        <Button variant="default" loading={send.isPending && send.variables} onClick={() => send.mutate(true)}>
          Show what it changes
        </Button>
      }
    >
      <Group align="flex-end">
        <NativeSelect
          label="Book"
          data={bookNames}
          value={book}
          error={fieldError(send.error, 'book')}
          onChange={({ currentTarget: { value } }) =>
            void navigate({ to: '/platform/prices/new', search: { book: value === BASE ? undefined : value } })
          }
        />
        <TextInput
          label="Model"
          required
          list="priced-models"
          value={rest.model}
          error={fieldError(send.error, 'model')}
          onChange={({ currentTarget: { value } }) => set({ model: value })}
        />
        <datalist id="priced-models">
          {models.map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
        <NativeSelect
          label="Prices"
          data={[
            { value: 'whole', label: 'all of the model' },
            { value: 'overrides', label: 'only these, over those in force' },
          ]}
          value={rest.kind}
          error={fieldError(send.error, 'kind')}
          onChange={({ currentTarget: { value } }) => set({ kind: value })}
        />
      </Group>
      <CellTable
        cells={cells}
        change={setCell}
        remove={(index) => setCells(cells.filter((_, n) => n !== index))}
        error={send.error}
      />
      <Group>
        <Button
          variant="default"
          size="xs"
          onClick={() => setCells([...cells, { meter: '', lane: '*', contextFrom: '0', price: '' }])}
        >
          Add a price
        </Button>
        <Text size="xs" c="dimmed">
          Per 1,000,000 units; storage per million token-hours. Lane * is every lane without prices of its own.
        </Text>
      </Group>
      <Group align="flex-start">
        <TextInput
          label="From (UTC)"
          type="datetime-local"
          description="Empty: from the approval on."
          value={rest.effective_at}
          error={fieldError(send.error, 'effective_at')}
          onChange={({ currentTarget: { value } }) => set({ effective_at: value })}
        />
        <TextInput
          label="Until (UTC)"
          type="datetime-local"
          description="Empty: without an end."
          value={rest.effective_until}
          error={fieldError(send.error, 'effective_until')}
          onChange={({ currentTarget: { value } }) => set({ effective_until: value })}
        />
        <TextInput
          label="Reason"
          description="Kept with the sheet."
          value={rest.reason}
          error={fieldError(send.error, 'reason')}
          onChange={({ currentTarget: { value } }) => set({ reason: value })}
        />
        <TextInput
          label="Why it is unusual"
          description="Only where the check asks for it."
          value={rest.force}
          error={fieldError(send.error, 'force')}
          onChange={({ currentTarget: { value } }) => set({ force: value })}
        />
      </Group>
      {check !== undefined && (
        <section aria-label="What it would change" role="status">
          <DifferenceTable caption={`What it would change, in ${check.currency}`} rows={check.difference} />
        </section>
      )}
    </Form>
  );
}

function priceCells(cells: readonly EditedCell[]): Schema<'Cell'>[] {
  return cells.filter(isFilled).map(({ meter, lane, contextFrom, price }, index) => {
    if (!/^\d{1,9}$/.test(contextFrom)) {
      throw Problem.at(`prices[${index}].context_from`, `“${contextFrom}” is no number of tokens.`);
    }
    return { meter: meter.trim(), lane, price: price.trim(), context_from: Number(contextFrom) };
  });
}

function isFilled(cell: EditedCell): boolean {
  return cell.price.trim() !== '' || cell.meter.trim() !== '';
}

interface CellTableProps {
  cells: readonly EditedCell[];
  change: (index: number, changed: Partial<EditedCell>) => void;
  remove: (index: number) => void;
  error: unknown;
}

function CellTable({ cells, change, remove, error }: CellTableProps) {
  const filled = cells.filter(isFilled);
  return (
    <Table.ScrollContainer minWidth={0} type="native" tabIndex={0} role="region" aria-label="Prices of the proposal">
      <Table verticalSpacing={4}>
        <Table.Thead>
          <Table.Tr>
            {['Meter', 'Lane', 'Prompts from (tokens)', 'Price', 'Remove'].map((heading) => (
              <Table.Th key={heading} scope="col">
                {heading}
              </Table.Th>
            ))}
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {cells.map((cell, index) => {
            const name = columnName({ lane: cell.lane, contextFrom: Number(cell.contextFrom) || 0 });
            const words = `${meterName(cell.meter) || 'the new price'}, ${name}`;
            const errorAt = (field: string) => fieldError(error, `prices[${filled.indexOf(cell)}].${field}`);
            return (
              <Table.Tr key={`${index} ${inKey(cell)}`}>
                <Table.Td>
                  <TextInput
                    aria-label={`Meter ${index + 1}`}
                    defaultValue={cell.meter}
                    miw={130}
                    error={errorAt('meter')}
                    onBlur={({ currentTarget: { value } }) => change(index, { meter: value })}
                  />
                </Table.Td>
                <Table.Td>
                  <NativeSelect
                    aria-label={`Lane of ${words}`}
                    data={LANES}
                    value={cell.lane}
                    error={errorAt('lane')}
                    onChange={({ currentTarget: { value } }) => change(index, { lane: value })}
                  />
                </Table.Td>
                <Table.Td>
                  <TextInput
                    aria-label={`Prompts from, of ${words}`}
                    defaultValue={cell.contextFrom}
                    inputMode="numeric"
                    miw={90}
                    error={errorAt('context_from')}
                    onBlur={({ currentTarget: { value } }) => change(index, { contextFrom: value })}
                  />
                </Table.Td>
                <Table.Td>
                  <TextInput
                    aria-label={`Price of ${words}`}
                    value={cell.price}
                    inputMode="decimal"
                    miw={100}
                    error={cell.price !== '' && microOf(cell.price) === undefined ? 'Such as 0.40' : errorAt('price')}
                    onChange={({ currentTarget: { value } }) => change(index, { price: value })}
                  />
                </Table.Td>
                <Table.Td>
                  <Button size="xs" variant="default" aria-label={`Remove ${words}`} onClick={() => remove(index)}>
                    Remove
                  </Button>
                </Table.Td>
              </Table.Tr>
            );
          })}
        </Table.Tbody>
      </Table>
    </Table.ScrollContainer>
  );
}

function inKey(cell: EditedCell): string {
  return cellKey(cell.meter, cell.lane, Number(cell.contextFrom) || 0);
}
