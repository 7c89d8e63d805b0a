import { describe, expect, it } from 'vitest';

import { events } from './stream';

async function read(...parts: Uint8Array[]): Promise<string[]> {
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const part of parts) controller.enqueue(part);
      controller.close();
    },
  });
  const found: string[] = [];
  for await (const data of events(body)) found.push(data);
  return found;
}

describe('events', () => {
  it('joins what the network cuts anywhere, even inside a character', async () => {
    const bytes = new TextEncoder().encode('data: {"a":"é"}\n\n: ping\n\ndata: [DONE]\n\n');
    for (let cut = 0; cut <= bytes.length; cut += 1) {
      expect(await read(bytes.slice(0, cut), bytes.slice(cut))).toEqual(['{"a":"é"}', '[DONE]']);
    }
  });
});
