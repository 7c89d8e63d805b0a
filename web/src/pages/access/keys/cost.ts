/** What keys have cost since the month began, of the usage report: exact, by currency. */
import { query, type Schema } from '~/api/client';
import { addAmounts } from '~/money/decimal';
import { firstOfMonth, startOf, useToday } from '~/time/days';

/** A key's public id → its cost by currency. */
export type Costs = Map<string, Record<string, string>>;

/** The costs of keys in a report that is grouped by key. */
export function costsOf(report: Pick<Schema<'UsageReport'>, 'data'>): Costs {
  const costs: Costs = new Map();
  for (const { key, cost } of report.data.flatMap((bucket) => bucket.results)) {
    if (key === undefined || key === null) continue;
    const sums = costs.get(key) ?? {};
    for (const [currency, amount] of Object.entries(cost)) sums[currency] = addAmounts([sums[currency] ?? '0', amount]);
    costs.set(key, sums);
  }
  return costs;
}

/** The costs of a tenant's keys in this month; undefined until they are read, or where the user may not see usage. */
export function useMonthCosts(tenant: string, allowed: boolean): Costs | undefined {
  const today = useToday();
  const params = { path: { tenant }, query: { since: startOf(firstOfMonth(today)), group_by: ['key'] as 'key'[] } };
  const report = query.useQuery(
    'get',
    '/admin/v1/tenants/{tenant}/usage',
    { params },
    { enabled: allowed, staleTime: 60_000, refetchInterval: false },
  );
  return report.data === undefined ? undefined : costsOf(report.data);
}
