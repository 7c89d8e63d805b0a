/** The filters of the audit log as they stand in the URL and as the API takes them. */
import type { Search } from '~/app/search';
import { text } from '~/app/search';
import { dayAfter, startOf } from '~/time/days';

export const AUDIT_PATH = '/admin/v1/audit';
const NAMES = ['actor', 'action', 'target', 'target_id', 'tenant', 'project', 'from', 'to'] as const;

export type AuditFilters = Partial<Record<(typeof NAMES)[number], string>>;

/** The filters of a search. */
export function auditFilters(search: Search): AuditFilters {
  const filters: AuditFilters = {};
  for (const name of NAMES) {
    const value = text(search, name);
    if (value !== undefined) filters[name] = value;
  }
  return filters;
}

/** The query of the API for filters: a day as `from` is its first instant, as `to` it is in the span. */
export function auditQuery(filters: AuditFilters): AuditFilters {
  const query = { ...filters };
  if (isDay(filters.from)) query.from = `${filters.from}T00:00:00Z`;
  if (isDay(filters.to)) query.to = startOf(dayAfter(filters.to!));
  return query;
}

/** The path of the CSV file with the same entries. */
export function csvPath(query: AuditFilters): string {
  return `${AUDIT_PATH}?${new URLSearchParams({ ...query, format: 'csv' }).toString()}`;
}

function isDay(value: string | undefined): boolean {
  return value !== undefined && /^\d{4}-\d{2}-\d{2}$/.test(value) && !Number.isNaN(Date.parse(value));
}
