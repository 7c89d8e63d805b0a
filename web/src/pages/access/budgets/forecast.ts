/** What a budget comes to at the end of its window, if it goes on as it did: exact, rounded down to a pico. */
import type { Schema } from '~/api/client';
import { compareAmounts, formatAmount, parseAmount } from '~/money/decimal';

export type Budget = Schema<'BudgetObject'>;

const DAY_MS = 86_400_000;

/** The first instant of a budget's window that ends at `resets_at`, in milliseconds; null where it has no end. */
function windowStart(budget: Pick<Budget, 'window' | 'resets_at'>): number | null {
  if (budget.resets_at === null) return null;
  const end = new Date(budget.resets_at);
  if (budget.window === 'day') return end.getTime() - DAY_MS;
  return Date.UTC(end.getUTCFullYear(), end.getUTCMonth() - 1, end.getUTCDate());
}

/**
 * The spending at the end of the window at the pace so far. Null for a window without an end, and for the first
 * twentieth of one: then the pace says nothing yet.
 */
export function forecast(budget: Pick<Budget, 'window' | 'resets_at' | 'spent'>, now: number): string | null {
  const start = windowStart(budget);
  if (start === null) return null;
  const whole = BigInt(new Date(budget.resets_at!).getTime() - start);
  const past = BigInt(Math.floor(now - start));
  if (past <= 0n || past > whole || past * 20n < whole) return null;
  return formatAmount((parseAmount(budget.spent) * whole) / past);
}

/** The percentages of the limit that were passed, and the first that was not. */
export function passed(budget: Pick<Budget, 'thresholds' | 'limit' | 'spent'>): {
  passed: number[];
  next: number | null;
} {
  const reached = (percent: number): boolean =>
    compareAmounts(
      formatAmount(parseAmount(budget.spent) * 100n),
      formatAmount(parseAmount(budget.limit) * BigInt(percent)),
    ) >= 0;
  const sorted = [...budget.thresholds].sort((one, other) => one - other);
  return { passed: sorted.filter(reached), next: sorted.find((percent) => !reached(percent)) ?? null };
}
