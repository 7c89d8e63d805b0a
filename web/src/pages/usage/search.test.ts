import { describe, expect, it } from 'vitest';

import { onlyOf, pathWith, PLATFORM_GROUPS, seriesQuery, spanChoices, spanOf, usageSearch } from './search';

describe('the search of the usage explorer', () => {
  it('keeps what it knows and drops the rest', () => {
    const search = { group: 'model', then: 'key', measure: 'tokens', bucket: 'hour', top: '20', compare: 'previous' };
    expect(usageSearch(search)).toEqual({ ...search, top: 20 });
    expect(usageSearch({ group: 'colour', measure: 7, bucket: 'week', top: '51', compare: 'next', x: 1 })).toEqual({});
  });

  it('groups by two different things, of those that there are', () => {
    expect(usageSearch({ group: 'model', then: 'model' })).toEqual({ group: 'model' });
    expect(usageSearch({ then: 'model' })).toEqual({});
    expect(usageSearch({ group: 'tenant' })).toEqual({});
    expect(usageSearch({ group: 'tenant' }, PLATFORM_GROUPS)).toEqual({ group: 'tenant' });
  });
});

describe('the span', () => {
  it('is nothing for this month, which is the own of the API', () => {
    expect(spanOf({})).toEqual({});
  });

  it('is a period for a whole month, so that its sums are those of the invoice', () => {
    expect(spanOf({ from: '2026-10-01', to: '2026-11-01' })).toEqual({ period: '2026-10' });
    expect(spanOf({ from: '2025-12-01', to: '2026-01-01T00:00:00Z' })).toEqual({ period: '2025-12' });
    expect(spanOf({ from: '2026-10-01', to: '2026-12-01' }).period).toBeUndefined();
    expect(spanOf({ from: '2026-10-02', to: '2026-11-01' }).period).toBeUndefined();
  });

  it('is two instants otherwise, and what is no instant goes to the server, which says so', () => {
    expect(spanOf({ from: '2026-11-20' })).toEqual({ since: '2026-11-20T00:00:00.000Z', until: undefined });
    expect(spanOf({ from: 'soon' }).since).toBe('soon');
  });

  it('is offered by words, in UTC', () => {
    const choices = spanChoices('2026-01-15');
    expect(choices.find((one) => one.label === 'Last month')).toEqual({
      label: 'Last month',
      from: '2025-12-01',
      to: '2026-01-01',
    });
    expect(choices.find((one) => one.label === 'Today')).toMatchObject({ from: '2026-01-15', to: '2026-01-16' });
    expect(choices.find((one) => one.label === 'Last 7 days')).toMatchObject({ from: '2026-01-09', to: '2026-01-16' });
  });
});

describe('what the API is asked', () => {
  it('has filters as lists and groups in their order', () => {
    expect(onlyOf({ project: 'a', from: '2026-11-01' })).toEqual({ project: ['a'] });
    expect(seriesQuery({ group: 'key', then: 'lane', model: 'm' })).toMatchObject({
      group_by: ['key', 'lane'],
      model: ['m'],
    });
    expect(seriesQuery({}).group_by).toBeUndefined();
  });

  it('is written as a path with repeated parameters, without what is undefined', () => {
    const path = pathWith('/x', { group_by: ['key', 'lane'], top: undefined, model: ['a b'], digest: 'd' });
    expect(path).toBe('/x?group_by=key&group_by=lane&model=a+b&digest=d');
  });
});
