/** What a change that waits would change: prices before and after, a setting's value, or what was asked for. */
import { Text } from '@mantine/core';

import { query, type Schema } from '~/api/client';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Instant, Money } from '~/components/values';

import { shortest } from '../audit/difference';
import { Details } from '../Details';

type Change = Schema<'PendingChangeObject'>;
type PriceDifference = Schema<'Difference'>;

export function ChangeDifference({ change }: { change: Change }) {
  if (change.kind === 'price_sheet.activate') return <Prices sheet={Number(change.details.sheet)} />;
  if (change.kind === 'platform_setting.set') {
    return (
      <Setting
        name={change.details.name ?? ''}
        value={change.details.value ?? ''}
        pending={change.state === 'pending'}
      />
    );
  }
  const fields = Object.entries(change.details).filter(([place]) => !/(^|\.)(tenant_id|reason|id)$/.test(place));
  return (
    <Details label="What was asked for" fields={fields.map(([place, value]) => [wordsOf(place), shortest(value)])} />
  );
}

function Prices({ sheet }: { sheet: number }) {
  const found = query.useQuery('get', '/admin/v1/prices/sheets/{number}', { params: { path: { number: sheet } } });
  return (
    <Loaded query={found} what="the prices" height={120}>
      {(data) => (
        <>
          <Text size="sm">
            {data.effective_at === null ? (
              'From its approval on'
            ) : (
              <>
                From <Instant at={data.effective_at} /> on
              </>
            )}
            {data.effective_until !== null && (
              <>
                , until <Instant at={data.effective_until} />
              </>
            )}
            ; in {data.currency} for a million units.
            {data.forced !== null && ` Marked as intended although unusual: ${data.forced}`}
          </Text>
          <DataTable
            caption={`What changes of the prices of ${data.model}`}
            columns={PRICE_COLUMNS}
            rows={data.difference}
            rowKey={(one) => `${one.meter}/${one.lane}/${one.context_from}`}
            empty="It changes no price that is in force now."
          />
        </>
      )}
    </Loaded>
  );
}

const PRICE_COLUMNS: Column<PriceDifference>[] = [
  { header: 'Meter', cell: (one) => one.meter },
  { header: 'Lane', cell: (one) => (one.lane === '*' ? 'every lane' : one.lane) },
  { header: 'From context', numeric: true, cell: (one) => one.context_from },
  { header: 'Before', numeric: true, cell: (one) => <Price amount={one.before} /> },
  { header: 'After', numeric: true, cell: (one) => <Price amount={one.after} /> },
];

function Price({ amount }: { amount: string | null }) {
  return amount === null ? <>none</> : <Money amount={amount} />;
}

function Setting({ name, value, pending }: { name: string; value: string; pending: boolean }) {
  const settings = query.useQuery('get', '/admin/v1/platform/settings', {}, { enabled: pending });
  const present = settings.data?.data.find((one) => one.name === name)?.value;
  const rows = [{ name, present: present ?? '…', value }];
  const columns: Column<(typeof rows)[number]>[] = [
    { header: 'Setting', cell: (one) => one.name },
    ...(pending ? [{ header: 'Now', cell: (one: (typeof rows)[number]) => one.present }] : []),
    { header: 'Then', cell: (one) => one.value },
  ];
  return <DataTable caption="What changes" columns={columns} rows={rows} rowKey={(one) => one.name} empty="" />;
}

/** `terms.discounts.0.percent` → `terms discounts 1 percent` */
export function wordsOf(place: string): string {
  return place
    .split('.')
    .map((part) => (/^\d+$/.test(part) ? String(Number(part) + 1) : part.replaceAll('_', ' ')))
    .join(' ');
}
