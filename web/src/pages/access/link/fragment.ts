/** One-time links: what they are for and their token stand in the fragment of the URL, which browsers send to nobody. */

export type LinkKind = 'invitation' | 'password_reset' | 'sign_in';
const KINDS: readonly LinkKind[] = ['invitation', 'password_reset', 'sign_in'];

export interface OneTimeLink {
  kind: LinkKind;
  token: string;
}

/** The link that a fragment is, such as `#invitation=…`; null for any other. */
export function parseFragment(fragment: string): OneTimeLink | null {
  const [name, token, ...more] = fragment.replace(/^#/, '').split('=');
  const kind = KINDS.find((one) => one === name);
  return kind === undefined || !token || more.length > 0 ? null : { kind, token };
}

/** Take the link out of the address, so that neither the history nor a screenshot keeps it. */
export function takeLink(): OneTimeLink | null {
  const link = parseFragment(location.hash);
  if (location.hash !== '') history.replaceState(history.state, '', location.pathname);
  return link;
}
