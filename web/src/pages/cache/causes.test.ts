import { describe, expect, it } from 'vitest';

import { causeText, causeWord } from './causes';

describe('a cause', () => {
  it('is told in a few words and in a sentence', () => {
    expect(causeWord('lease_expired')).toBe('Promise ended');
    expect(causeText('diverged')).toMatch(/^The prompt differs .*\.$/);
  });
});
