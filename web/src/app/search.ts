/** Filters that pages share, as they stand in the URL. A page's `validateSearch` takes what it needs of them. */

export type Search = Record<string, unknown>;

/** A text of the search; undefined if it is absent, empty or no text. */
export function text(search: Search, name: string): string | undefined {
  const value = search[name];
  if (typeof value === 'number') return String(value);
  return typeof value === 'string' && value !== '' ? value : undefined;
}

/** One of some words; undefined for any other. */
export function oneOf<Word extends string>(search: Search, name: string, words: readonly Word[]): Word | undefined {
  const value = text(search, name);
  return words.find((word) => word === value);
}

/** Which requests and which usage: the filters that overview, usage, cache and requests hand to each other. */
export interface UsageFilters {
  /** The first instant, or day, of the span (RFC 3339). */
  from?: string;
  /** The end of the span, which is not in it. */
  to?: string;
  project?: string;
  model?: string;
  lane?: string;
  key?: string;
}

/** The usage filters of a search. */
export function usageFilters(search: Search): UsageFilters {
  const filters: UsageFilters = {};
  for (const name of ['from', 'to', 'project', 'model', 'lane', 'key'] as const) {
    const value = text(search, name);
    if (value !== undefined) filters[name] = value;
  }
  return filters;
}
