/** Signs people of the demonstration in by the API, and gives those a password who are to use the sign-in page. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const CSRF = { 'x-turnpike-csrf': '1', 'content-type': 'application/json' };
/** The password of everybody to whom `givePassword` gave one. */
export const PASSWORD = 'a long enough phrase for tests';
export const OWNER = 'owner@localhost';
export const FINANCE = 'mia.brandt@nordlicht.example';
export const ADMIN = 'jonas.peters@nordlicht.example';
export const OPERATOR = 'ben.ortiz@turnpike.example';

/** A session: the `Cookie` header that carries it. */
export interface Session {
  cookie: string;
}

/** Call the API; the answer's JSON. Throws with the server's words for any refusal. */
export async function call<T>(url: string, session: Session, method: string, path: string, body?: unknown): Promise<T> {
  const response = await fetch(`${url}${path}`, {
    method,
    headers: { ...CSRF, cookie: session.cookie },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text.slice(0, 500)}`);
  return JSON.parse(text === '' ? 'null' : text) as T;
}

/** Sign in as the platform's owner with the link in the data folder, and give the owner a password. */
export async function signInByLink(url: string, folder: string): Promise<Session> {
  const token = readFileSync(join(folder, 'sign-in-link'), 'utf8').trim().split('=').pop();
  const session = await post(url, '/admin/v1/session/link', { token });
  const changed = await fetch(`${url}/admin/v1/users/me/password`, {
    method: 'POST',
    headers: { ...CSRF, cookie: session.cookie },
    body: JSON.stringify({ new: PASSWORD }),
  });
  if (!changed.ok) throw new Error(`the owner gets no password: ${await changed.text()}`);
  return cookieOf(changed) ?? session;
}

/** Sign in with e-mail address and password. */
export function signIn(url: string, email: string): Promise<Session> {
  return post(url, '/admin/v1/session', { email, password: PASSWORD });
}

/** Give a user of a tenant a password, as an owner does for who has lost it. */
export async function givePassword(url: string, owner: Session, email: string): Promise<void> {
  const user = encodeURIComponent(email);
  const link = await call<{ token: string }>(url, owner, 'POST', `/admin/v1/users/${user}/links`, {});
  await call(url, { cookie: '' }, 'POST', '/admin/v1/password-resets/redeem', {
    token: link.token,
    password: PASSWORD,
  });
}

async function post(url: string, path: string, body: unknown): Promise<Session> {
  const response = await fetch(`${url}${path}`, { method: 'POST', headers: CSRF, body: JSON.stringify(body) });
  const session = cookieOf(response);
  if (!response.ok || session === null) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return session;
}

function cookieOf(response: Response): Session | null {
  const found = response.headers
    .getSetCookie()
    .map((line) => line.split(';')[0]!)
    .find((pair) => /^(__Host-)?turnpike=./.test(pair));
  return found === undefined ? null : { cookie: found };
}
