/** The typed client of /admin/v1. Each call either gives what the document promises, or throws a Problem. */
import createFetchClient from 'openapi-fetch';
import createQueryClient from 'openapi-react-query';

import { Problem } from './problem';
import { proofOfUser } from './proof';
import type { components, paths } from './schema';

const CSRF = { 'x-turnpike-csrf': '1' };
const TIMEOUT_MS = 30_000;

/** The shape of an object of the API, by its name in the document. */
export type Schema<Name extends keyof components['schemas']> = components['schemas'][Name];

/** Send a request with the session's cookie. Where a proof of the user is asked for, get one and send it once more. */
export async function send(request: Request): Promise<Response> {
  const again = request.clone();
  let response = await fetch(request, { signal: AbortSignal.any([request.signal, AbortSignal.timeout(TIMEOUT_MS)]) });
  if (response.status === 403) {
    const problem = await Problem.of(response.clone());
    if (problem.code !== 'confirmation_required') throw problem;
    await proofOfUser.ask();
    response = await fetch(again);
  }
  if (!response.ok) throw await Problem.of(response);
  return response;
}

/** Calls outside of a component: `await api.POST('/admin/v1/…', { params, body })`. */
export const api = createFetchClient<paths>({ baseUrl: '', headers: CSRF, fetch: send });

/** Calls in a component: `query.useQuery('get', '/admin/v1/…', { params })`, `query.useMutation('post', …)`. */
export const query = createQueryClient(api);

/** Download a file of the API as it is, with the name that the server gives it. */
export async function download(path: string): Promise<void> {
  const response = await send(new Request(path));
  const name = /filename="([^"]+)"/.exec(response.headers.get('content-disposition') ?? '')?.[1];
  saveFile(await response.blob(), name ?? path.split('/').pop()!);
}

/** Hand content to the browser as a file. */
export function saveFile(content: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1_000);
}

/** Whether an answer says that the change waits for a second person (status 202). */
export function isPending(answer: unknown): answer is Schema<'PendingChangeObject'> {
  const { object, state } = (answer ?? {}) as { object?: unknown; state?: unknown };
  return object === 'change' && state === 'pending';
}

/** What is said of such a change. */
export const WAITS = 'It was proposed, and waits for the approval of a second person.';
