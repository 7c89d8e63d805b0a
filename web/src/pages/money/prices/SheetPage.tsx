/** One price sheet: its prices, what it changes, what was done with it, and the decision. */
import { Stack, Title } from '@mantine/core';
import { getRouteApi } from '@tanstack/react-router';

import { query, type Schema } from '~/api/client';
import { DataTable } from '~/components/DataTable';
import { Facts } from '~/components/Facts';
import { Page } from '~/components/Page';
import { Copied, Instant } from '~/components/values';

import { PageOf } from '../components/PageOf';
import { DifferenceTable, PriceGrid } from './PriceGrid';
import { SheetState } from './PricesPage';
import { SheetDecision } from './SheetDecision';
import { SheetImpact } from './SheetImpact';

const route = getRouteApi('/signed-in/platform/prices/sheets/$number');

export function SheetPage() {
  const { number } = route.useParams();
  const sheet = query.useQuery('get', '/admin/v1/prices/sheets/{number}', {
    params: { path: { number: Number(number) } },
  });
  return (
    <PageOf query={sheet} title="Price sheet">
      {(found) => <SheetShown sheet={found} />}
    </PageOf>
  );
}

function SheetShown({ sheet }: { sheet: Schema<'SheetWithDifference'> }) {
  return (
    <Page
      title={`Price sheet ${sheet.id}`}
      about={`${sheet.model} in the book ${sheet.book}, in ${sheet.currency} per 1,000,000 units.`}
    >
      <Stack gap="xl">
        <Facts
          label="The sheet"
          facts={[
            { name: 'State', value: <SheetState state={sheet.state} /> },
            { name: 'From', value: sheet.effective_at === null ? 'its approval' : <Instant at={sheet.effective_at} /> },
            { name: 'Until', value: <Instant at={sheet.effective_until} /> },
            { name: 'Author', value: sheet.author },
            { name: 'Reason', value: sheet.reason || '–' },
            { name: 'Prices', value: sheet.kind === 'whole' ? 'all of the model' : 'some, over those below it' },
            ...(sheet.forced === null ? [] : [{ name: 'Unusual on purpose', value: sheet.forced }]),
            { name: 'SHA-256', value: <Copied text={sheet.sha256} label="the SHA-256" /> },
          ]}
        />
        <section aria-labelledby="difference">
          <Title order={2} id="difference" mb="xs">
            What it changes
          </Title>
          <DifferenceTable caption={`What sheet ${sheet.id} changes`} rows={sheet.difference} />
        </section>
        <SheetImpact number={sheet.id} />
        <SheetDecision sheet={sheet} />
        <section aria-labelledby="prices">
          <Title order={2} id="prices" mb="xs">
            Its prices
          </Title>
          <PriceGrid caption={`Prices of sheet ${sheet.id}`} cells={sheet.prices} />
        </section>
        <section aria-labelledby="changes">
          <Title order={2} id="changes" mb="xs">
            What was done with it
          </Title>
          <DataTable
            caption="Changes of the sheet"
            columns={[
              { header: 'At', cell: (change) => <Instant at={change.at} /> },
              { header: 'What', cell: (change) => change.action },
              { header: 'Who', cell: (change) => change.actor },
              { header: 'Via', cell: (change) => change.via },
              { header: 'Reason', cell: (change) => change.reason },
            ]}
            rows={sheet.changes}
            rowKey={(change) => `${change.at} ${change.action}`}
            empty="Nothing yet."
          />
        </section>
      </Stack>
    </Page>
  );
}
