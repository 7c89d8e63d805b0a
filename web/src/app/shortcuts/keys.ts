/** What single keys mean: where `g` and a letter lead, and which action a key is. */
import { type Group, type PageEntry, PLATFORM_GROUP, TENANT_GROUPS } from '../navigation';

/** The letter behind `g` for each page of the navigation, by its path. */
const LETTERS: Record<string, string> = {
  '/tenants/$tenant/overview': 'o',
  '/tenants/$tenant/usage': 'u',
  '/tenants/$tenant/cache': 'c',
  '/tenants/$tenant/requests': 'r',
  '/tenants/$tenant/refused': 'x',
  '/tenants/$tenant/batches': 'j',
  '/tenants/$tenant/files': 'g',
  '/tenants/$tenant/adapters': 'z',
  '/tenants/$tenant/playground': 'y',
  '/tenants/$tenant/keys': 'k',
  '/tenants/$tenant/projects': 'p',
  '/tenants/$tenant/members': 'm',
  '/tenants/$tenant/limits': 'l',
  '/tenants/$tenant/budgets': 'b',
  '/tenants/$tenant/webhooks': 'w',
  '/tenants/$tenant/audit': 'a',
  '/tenants/$tenant/invoices': 'i',
  '/tenants/$tenant/balance': 'n',
  '/tenants/$tenant/payments': 'q',
  '/tenants/$tenant/terms': 't',
  '/tenants/$tenant/buyer': 'd',
  '/tenants/$tenant/exports': 'e',
  '/platform/overview': 'h',
  '/platform/fleet': 'f',
  '/platform/approvals': 'v',
  '/platform/prices': 's',
};

/** A page that `g` and a letter lead to. */
export interface Jump {
  letter: string;
  page: PageEntry;
}

/** The jumps to the pages of these groups, in their order. */
export function jumpsTo(groups: readonly Group[]): Jump[] {
  return groups.flatMap(({ pages }) =>
    pages.flatMap((page) => (LETTERS[page.to] === undefined ? [] : [{ letter: LETTERS[page.to]!, page }])),
  );
}

/** Every jump there is. */
export const ALL_JUMPS = jumpsTo([...TENANT_GROUPS, PLATFORM_GROUP]);

export type Action = 'filter' | 'next' | 'previous' | 'open' | 'leave' | 'list' | 'go';

const ACTIONS: Record<string, Action> = {
  '/': 'filter',
  j: 'next',
  k: 'previous',
  Enter: 'open',
  Escape: 'leave',
  '?': 'list',
  g: 'go',
};

/** A key as it was pressed: what is looked at of a KeyboardEvent. */
export interface Pressed {
  key: string;
  ctrlKey: boolean;
  metaKey: boolean;
  altKey: boolean;
}

/** What a key does: an action, or behind `g` the letter of a page. Keys with Ctrl, Alt or Meta belong to others. */
export function meaningOf(pressed: Pressed, afterG: boolean): Action | { letter: string } | null {
  if (pressed.ctrlKey || pressed.metaKey || pressed.altKey) return null;
  if (afterG && /^[a-z]$/.test(pressed.key)) return { letter: pressed.key };
  return Object.hasOwn(ACTIONS, pressed.key) ? ACTIONS[pressed.key]! : null;
}

/** The place of the row that `j` or `k` leads to among so many rows; -1: none has been chosen yet. */
export function rowAfter(place: number, rows: number, action: 'next' | 'previous'): number {
  if (rows === 0) return -1;
  if (place < 0) return action === 'next' ? 0 : rows - 1;
  return Math.min(rows - 1, Math.max(0, place + (action === 'next' ? 1 : -1)));
}
