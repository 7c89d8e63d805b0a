import { describe, expect, it } from 'vitest';

import { asCurl, asPython, bodyOf, type Question } from './body';

const QUESTION: Question = { model: 'tiny', system: '', user: 'Hi', lane: 'standard', maxTokens: '', temperature: '' };

describe('bodyOf', () => {
  it('leaves out what is empty', () => {
    expect(bodyOf(QUESTION)).toEqual({ model: 'tiny', messages: [{ role: 'user', content: 'Hi' }] });
  });

  it('takes everything that is given', () => {
    const body = bodyOf({ ...QUESTION, system: 'Be brief.', lane: 'batch', maxTokens: '64', temperature: '0' });
    expect(body.messages.map((message) => message.role)).toEqual(['system', 'user']);
    expect(body).toMatchObject({ service_tier: 'flex', max_completion_tokens: 64, temperature: 0 });
    expect(bodyOf({ ...QUESTION, lane: 'interactive' }).service_tier).toBe('priority');
  });
});

describe('as a program', () => {
  it('never ends the quotes of the shell', () => {
    const call = asCurl('https://x', bodyOf({ ...QUESTION, user: "it's; rm -rf" }));
    expect(call).toContain("it'\\''s; rm -rf");
    expect(call).toContain('$TURNPIKE_API_KEY');
  });

  it('writes strings that Python reads', () => {
    const call = asPython('https://x', bodyOf({ ...QUESTION, user: 'a "b"\nc' }));
    expect(call).toContain('"content": "a \\"b\\"\\nc"');
    expect(call).toContain('os.environ["TURNPIKE_API_KEY"]');
  });
});
