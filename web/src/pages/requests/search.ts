/** The filters of the requests as the URL has them, and as the API wants them. */
import { oneOf, type Search, text, type UsageFilters, usageFilters } from '~/app/search';

export const LANES = ['interactive', 'standard', 'batch'] as const;
export const STATUSES = ['ok', 'cancelled', 'failed'] as const;

export interface RequestFilters extends UsageFilters {
  status?: (typeof STATUSES)[number];
  /** Only what took so many seconds or more. */
  took?: string;
}

export interface RequestsSearch extends RequestFilters {
  /** The request that is shown beside the list. */
  open?: string;
}

/** The filters of a search. */
export function requestFilters(search: Search): RequestFilters {
  const filters: RequestFilters = usageFilters(search);
  const status = oneOf(search, 'status', STATUSES);
  const took = text(search, 'took');
  if (status !== undefined) filters.status = status;
  if (took !== undefined && Number(took) > 0) filters.took = took;
  return filters;
}

/** The search of the list. */
export function requestsSearch(search: Search): RequestsSearch {
  const open = text(search, 'open');
  return open === undefined ? requestFilters(search) : { ...requestFilters(search), open };
}

/** The query of `GET …/requests` with these filters. */
export function listQuery(filters: RequestFilters) {
  const { from, to, project, model, lane, key, status, took } = filters;
  const one = <Value>(value: Value | undefined): Value[] | undefined => (value === undefined ? undefined : [value]);
  return {
    since: from,
    until: to,
    project: one(project),
    model: one(model),
    lane: one(lane),
    key: one(key),
    status: one(status),
    min_total_ms: took === undefined ? undefined : Math.round(Number(took) * 1000),
  };
}

/** An instant as an `<input type="datetime-local">` shows it, in UTC; empty for none, or for what is none. */
export function toInput(instant: string | undefined): string {
  const at = instant === undefined ? Number.NaN : new Date(instant).getTime();
  return Number.isNaN(at) ? '' : new Date(at).toISOString().slice(0, 16);
}

/** The instant that such an input says, in UTC; undefined while it is empty. */
export function fromInput(value: string): string | undefined {
  const at = new Date(`${value}Z`).getTime();
  return value === '' || Number.isNaN(at) ? undefined : new Date(at).toISOString().replace('.000Z', 'Z');
}

/** The id of a request in what somebody pasted: `req_…`, a response's id, or a line with one in it. */
export function idIn(pasted: string): string | undefined {
  return /(?:\b[a-z]{1,16}[-_])?[0-9a-f]{32}/.exec(pasted.trim())?.[0];
}
