/** What a month's usage would have cost at a sheet's prices: exactly, from the units that were billed. */
import { Text } from '@mantine/core';

import { query } from '~/api/client';
import { Facts } from '~/components/Facts';
import { Loaded } from '~/components/Loaded';
import { Money } from '~/components/values';
import { addAmounts, displayCount } from '~/money/decimal';
import { monthOf, useToday } from '~/time/days';

import { counted } from '../invoices/SumLine';

export function SheetImpact({ number }: { number: number }) {
  const period = monthOf(useToday(), 1);
  const impact = query.useQuery(
    'get',
    '/admin/v1/prices/sheets/{number}/impact',
    { params: { path: { number }, query: { period } } },
    { refetchInterval: false, staleTime: 60_000 },
  );
  return (
    <Loaded query={impact} what={`what ${period} would have cost`} height={60}>
      {(found) => (
        <section aria-label={`What ${period} would have cost`}>
          <Facts
            label={`What ${period} would have cost`}
            facts={[
              { name: `${found.period} cost`, value: <Money amount={found.cost} currency={found.currency} /> },
              ...(found.would_cost === null
                ? [{ name: 'It would have cost', value: 'cannot be told', about: `Not exactly: ${found.inexact}.` }]
                : [
                    {
                      name: 'It would have cost',
                      value: <Money amount={found.would_cost} currency={found.currency} />,
                    },
                    {
                      name: 'Difference',
                      value: (
                        <Money amount={addAmounts([found.would_cost, negated(found.cost)])} currency={found.currency} />
                      ),
                    },
                  ]),
              { name: 'Requests', value: displayCount(found.requests), about: counted(found.tenants, 'tenant') },
            ]}
          />
          <Text size="xs" c="dimmed">
            At list prices, without cache storage, before contracts and tax
            {found.closed ? '' : '; the month is not closed, so not complete'}.
            {found.left_out > 0 && ` Left out: ${counted(found.left_out, 'tenant')} with prices of their own.`}
          </Text>
        </section>
      )}
    </Loaded>
  );
}

function negated(amount: string): string {
  return amount.startsWith('-') ? amount.slice(1) : `-${amount}`;
}
