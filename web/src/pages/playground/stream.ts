/** Sends a question and reads the answer as it comes. Nothing of it is kept. */
import type { Schema } from '~/api/client';
import { Problem } from '~/api/problem';

import type { Body } from './body';

export type Usage = Schema<'OpenAICompletionUsage'>;

/** What an answer has told so far. */
export interface Told {
  text: string;
  usage?: Usage;
  finishReason?: string;
}

interface Chunk {
  choices?: { delta?: { content?: string | null }; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: { message?: string; code?: string | null; param?: string | null };
}

/** Where the playground of a project is. */
export function playgroundPath(tenant: string, project: string): string {
  return `/admin/v1/tenants/${encodeURIComponent(tenant)}/projects/${encodeURIComponent(project)}/playground`;
}

/**
 * Ask, and tell what has come after each part. `began` gets the request's id when the answer begins. Throws a Problem,
 * and what `fetch` throws when `signal` ends it.
 */
export async function ask(
  path: string,
  body: Body,
  signal: AbortSignal,
  began: (requestId: string) => void,
  tell: (told: Told) => void,
): Promise<void> {
  const response = await fetch(`${path}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-turnpike-csrf': '1' },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await Problem.of(response);
  const requestId = response.headers.get('x-request-id') ?? '';
  began(requestId);
  let told: Told = { text: '' };
  for await (const data of events(response.body!)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error !== undefined) {
      const { message, code, param } = chunk.error;
      throw new Problem(message ?? 'The answer ended early.', 200, code ?? '', param ?? '', requestId);
    }
    told = add(told, chunk);
    tell(told);
  }
  throw new Problem('The answer ended early.', 0, '', '', requestId);
}

function add(told: Told, chunk: Chunk): Told {
  const choice = chunk.choices?.[0];
  return {
    text: told.text + (choice?.delta?.content ?? ''),
    usage: chunk.usage ?? told.usage,
    finishReason: choice?.finish_reason ?? told.finishReason,
  };
}

/** The data of each server-sent event of a body, whose events have one line of data each. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split('\n');
      rest = lines.pop()!;
      for (const line of lines) if (line.startsWith('data:')) yield line.slice(5).trim();
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}
