import type { QueryCache } from '@tanstack/react-query';
import { describe, expect, it } from 'vitest';

import { shownParts } from './Partial';

function query(path: string, status: string, data?: unknown, observers = 1): unknown {
  return { queryKey: ['get', path], state: { status, data }, getObserversCount: () => observers };
}

function parts(...queries: unknown[]): string {
  return shownParts({ getAll: () => queries } as unknown as Pick<QueryCache, 'getAll'>);
}

describe('the parts of a page', () => {
  it('count as shown with data, even if they could not be refreshed, and while they load', () => {
    expect(parts(query('/a', 'success', {}), query('/b', 'error', {}), query('/c', 'pending'))).toBe('3/3');
    expect(parts(query('/a', 'success', {}), query('/b', 'error'))).toBe('1/2');
  });

  it('are those of this page, without its frame', () => {
    expect(parts(query('/admin/v1/tenants', 'error'), query('/old', 'error', undefined, 0))).toBe('0/0');
  });
});
