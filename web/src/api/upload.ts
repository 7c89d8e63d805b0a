/** Sends a form with a file, and says how much of it has gone out: what fetch cannot. */
import { Problem } from './problem';
import { proofOfUser } from './proof';

/** The answer to a form that is sent to `path`. `progress` is told the share that has gone out, from 0 to 1. */
export async function upload<Answer>(path: string, form: FormData, progress: (share: number) => void): Promise<Answer> {
  let response = await sent(path, form, progress);
  if (response.status === 403) {
    const problem = await Problem.of(response.clone());
    if (problem.code !== 'confirmation_required') throw problem;
    await proofOfUser.ask();
    response = await sent(path, form, progress);
  }
  if (!response.ok) throw await Problem.of(response);
  return (await response.json()) as Answer;
}

function sent(path: string, form: FormData, progress: (share: number) => void): Promise<Response> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('POST', path);
    request.setRequestHeader('x-turnpike-csrf', '1');
    request.upload.addEventListener('progress', ({ loaded, total }) => progress(total > 0 ? loaded / total : 0));
    request.addEventListener('load', () => {
      const headers = { 'x-request-id': request.getResponseHeader('x-request-id') ?? '' };
      resolve(new Response(request.responseText, { status: request.status, headers }));
    });
    request.addEventListener('error', () => reject(new TypeError('unreachable')));
    request.send(form);
  });
}
