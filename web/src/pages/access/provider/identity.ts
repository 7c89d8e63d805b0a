/** Proving oneself elsewhere: at an identity provider's page, or by a passkey of this device. */
import { api } from '~/api/client';

const NEXT = 'turnpike.next';

/** Go to an identity provider's page to sign in; it sends the browser back to /console/provider. */
export async function signInBy(provider: string, next: string | undefined): Promise<void> {
  const { data } = await api.POST('/admin/v1/session/provider', { body: { provider } });
  leave(data!.url, next ?? '/');
}

/** Go to an identity provider's page to link the account, or to prove again who is signed in. */
export async function proveBy(provider: string, purpose: 'link' | 'confirm', next: string): Promise<void> {
  const { data } = await api.POST('/admin/v1/session/provider/confirm', { body: { provider, purpose } });
  leave(data!.url, next);
}

function leave(url: string, next: string): void {
  sessionStorage.setItem(NEXT, next);
  location.assign(url);
}

/** The page that was left for the provider's; it is told once. */
export function takeNext(): string {
  const next = sessionStorage.getItem(NEXT) ?? '/';
  sessionStorage.removeItem(NEXT);
  return next;
}

/** What an authenticator answers to the options of WebAuthn, as JSON. */
export async function askAuthenticator(options: string): Promise<string> {
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(
    JSON.parse(options) as PublicKeyCredentialRequestOptionsJSON,
  );
  return asJson(await navigator.credentials.get({ publicKey }));
}

/** The passkey that an authenticator makes by the options of WebAuthn, as JSON. */
export async function makePasskey(options: string): Promise<string> {
  const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(
    JSON.parse(options) as PublicKeyCredentialCreationOptionsJSON,
  );
  return asJson(await navigator.credentials.create({ publicKey }));
}

function asJson(credential: Credential | null): string {
  if (!(credential instanceof PublicKeyCredential)) throw new Error('The authenticator answered nothing.');
  return JSON.stringify(credential.toJSON());
}
