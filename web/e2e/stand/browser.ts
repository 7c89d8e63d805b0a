/** The browser: Debian's Chromium, with what a page of the console needs to be asked. */
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { AxeBuilder } from '@axe-core/playwright';
import { type Browser, type BrowserContext, chromium, type Locator, type Page } from 'playwright-core';

import { RESULTS } from './processes';

const WCAG = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'];
const PROGRAMS = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];
const QUIET = [
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-domain-reliability',
  '--disable-sync',
  '--no-default-browser-check',
  '--no-first-run',
  '--no-pings',
];
const DATA_MS = 20_000;

export type Scheme = 'light' | 'dark';

/** Start Chromium. As root it has no sandbox: it shows nobody's pages but ours. */
export function openBrowser(): Promise<Browser> {
  const executablePath = PROGRAMS.find((path) => path !== undefined && existsSync(path));
  if (executablePath === undefined) throw new Error('Chromium is missing: apt-get install chromium');
  const root = process.getuid?.() === 0 ? ['--no-sandbox'] : [];
  return chromium.launch({ executablePath, args: [...QUIET, ...root] });
}

/** A window of its own, signed in if a cookie is given; the page may talk to the gateway alone. */
export async function openWindow(browser: Browser, url: string, cookie?: string): Promise<BrowserContext> {
  const context = await browser.newContext({ baseURL: url, viewport: { width: 1280, height: 900 } });
  await context.route(
    (asked) => asked.protocol.startsWith('http') && asked.origin !== url,
    (route) => route.abort(),
  );
  if (cookie !== undefined) {
    const [name, value] = cookie.split(/=(.*)/s) as [string, string];
    await context.addCookies([{ name, value, url, httpOnly: true, sameSite: 'Lax' }]);
  }
  return context;
}

/** Wait until the page stands: it has its heading or says what is wrong, and nothing is still on its way. */
export async function settled(page: Page): Promise<void> {
  await page.locator('h1, [role="alert"]').first().waitFor({ timeout: DATA_MS });
  await page.waitForFunction(() => document.querySelector('[aria-busy="true"]') === null, null, { timeout: DATA_MS });
  await page.evaluate(() => document.fonts.ready.then(() => undefined));
}

/** What breaks WCAG 2.2 AA, a line a rule with the first element that does; of one rule alone, if it is named. */
export async function violations(page: Page, rule?: string): Promise<string[]> {
  const axe = new AxeBuilder({ page });
  const { violations: found } = await (rule === undefined ? axe.withTags(WCAG) : axe.withRules([rule])).analyze();
  return found.map(({ id, nodes, help }) => {
    const [first] = nodes;
    const why = [...(first?.any ?? []), ...(first?.all ?? [])].map((check) => check.message).join(' ') || help;
    return `${id} (${nodes.length}): ${first?.html.slice(0, 200)} – ${why}`;
  });
}

/** Keep what the page looks like. */
export async function keepPicture(page: Page, name: string): Promise<void> {
  const folder = join(RESULTS, 'pictures');
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: true, animations: 'disabled' });
}

/** Counts the clicks that a task takes. */
export class Clicks {
  count = 0;

  async on(target: Locator): Promise<void> {
    this.count += 1;
    await target.click({ timeout: DATA_MS });
  }
}
