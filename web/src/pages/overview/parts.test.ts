import { describe, expect, it } from 'vitest';

import { displayMilliseconds, firstTokenNote, placeOf } from './parts';

describe('a notice', () => {
  const notice = { severity: 'warning', text: '', subject: '', tenant_id: 'tenant_1' } as const;

  it('leads to the page on which one does something about it', () => {
    expect(placeOf({ ...notice, code: 'key_expiring' }, 'acme')).toBe('/tenants/acme/keys');
    expect(placeOf({ ...notice, code: 'key_expiring' })).toBe('/tenants/tenant_1/keys');
    expect(placeOf({ ...notice, code: 'approval_waiting', tenant_id: null })).toBe('/platform/approvals');
    expect(placeOf({ ...notice, code: 'usage_refused', tenant_id: null })).toBeUndefined();
  });
});

describe('a duration', () => {
  it('is as precise as it was measured', () => {
    expect(displayMilliseconds(null)).toBe('–');
    expect(displayMilliseconds(1.414)).toBe('1.4\u00a0ms');
    expect(displayMilliseconds(22.6)).toBe('23\u00a0ms');
    expect(displayMilliseconds(1448)).toBe('1.4\u00a0s');
  });
});

describe('the time to the first token', () => {
  it('says where nothing was measured', () => {
    expect(firstTokenNote({ first_token: { requests: 0, p50_ms: null, p99_ms: null } })).toMatch(/^no request/);
    expect(firstTokenNote({ first_token: { requests: 2, p50_ms: 5, p99_ms: 9 } })).toBe(
      'median of 2 requests; 99 % within 9.0\u00a0ms',
    );
  });
});
