/** All pages of the console. A new page is a line here; the tests try each with data, empty and failing. */
import type { Page } from 'playwright-core';

import { settled } from './stand/browser';

import { FINANCE, OWNER } from './stand/people';

export interface ConsolePage {
  /** The name of its pictures. */
  name: string;
  /** Below `/console`; `$tenant` stands for the tenant. */
  path: string;
  /** Finds the rest of the path: what a link on the page at `path` names, such as an invoice. */
  link?: RegExp;
  /** Whose eyes see it; nobody's: it is there before signing in. */
  as?: typeof OWNER | typeof FINANCE | null;
  /** It shows nothing that is read from the API, so it cannot fail or be empty. */
  fixed?: true;
  /** Why it cannot be tried. */
  missing?: string;
}

const ofTenant = (...names: string[]): ConsolePage[] =>
  names.map((name) => ({ name, path: `/tenants/$tenant/${name}` }));
const ofPlatform = (...names: string[]): ConsolePage[] =>
  names.map((name) => ({ name: `platform-${name}`, path: `/platform/${name}` }));

export const PAGES: ConsolePage[] = [
  { name: 'sign-in', path: '/sign-in', as: null, fixed: true },
  { name: 'provider', path: '/provider', as: null, fixed: true },
  { name: 'not-found', path: '/no/such/page', fixed: true },
  { name: 'account', path: '/account', fixed: true },
  ...ofTenant('overview', 'usage', 'cache', 'requests', 'batches', 'files', 'adapters', 'refused', 'playground'),
  { name: 'batch', path: '/tenants/$tenant/batches', link: /\/batches\/([^/?]+)$/ },
  { name: 'request', path: '/tenants/$tenant/requests', link: /[?&]open=([^&]+)/ },
  ...ofTenant('keys', 'projects', 'members', 'limits', 'budgets', 'webhooks', 'audit'),
  ...ofTenant('invoices', 'balance', 'payments', 'terms', 'buyer', 'exports'),
  { name: 'key', path: '/tenants/$tenant/keys', link: /\/keys\/([^/?]+)$/ },
  { name: 'project', path: '/tenants/$tenant/projects', link: /\/projects\/([^/?]+)$/ },
  { name: 'invoice', path: '/tenants/$tenant/invoices', link: /\/invoices\/([^/?]+)$/ },
  { name: 'webhook', path: '/tenants/$tenant/webhooks', link: /\/webhooks\/([^/?]+)$/ },
  { name: 'price-sheet', path: '/platform/prices', link: /\/prices\/(sheets\/\d+)$/ },
  { name: 'price-proposal', path: '/platform/prices/new' },
  ...ofPlatform(
    'overview',
    'tenants',
    'usage',
    'fleet',
    'approvals',
    'prices',
    'invoices',
    'payments',
    'periods',
    'sellers',
    'users',
  ),
  { name: 'user', path: '/platform/users', link: /\/users\/([^/?]+)$/ },
  ...ofPlatform('operator-keys', 'members', 'suspensions', 'audit', 'settings'),
];

/** The path below /console; of a page that another one links to, the link's. */
export async function pathOf(page: Page, one: ConsolePage, tenant: string): Promise<string> {
  const path = one.path.replace('$tenant', tenant);
  const { link } = one;
  if (link === undefined) return path;
  await page.goto(`/console${path}`);
  await settled(page);
  const links = await page.locator('main a[href]').evaluateAll((all) => all.map((each) => each.getAttribute('href')!));
  const found = links.map((href) => link.exec(href)?.[1]).find((name) => name !== undefined);
  if (found === undefined) throw new Error(`${path} links to nothing like ${link}`);
  return `${path}/${found}`;
}
