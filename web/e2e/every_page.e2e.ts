/**
 * Every page, with data, empty and failing, in light and dark colours: nothing that axe finds against WCAG 2.2 AA;
 * everything reached with the keyboard alone; no scrolling sideways at 320 pixels. Pictures are kept.
 */
import type { Browser, BrowserContext, Page, Route } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';

import { PAGES, pathOf } from './pages';
import { keepPicture, openBrowser, openWindow, type Scheme, settled, violations } from './stand/browser';
import { EMPTY_TENANT } from './stand/global_setup';

const TENANT = 'nordlicht';
const SCHEMES: Scheme[] = ['light', 'dark'];
/** What the frame needs, whatever happens to a page's own data. */
const FRAME = /^\/admin\/v1\/(users\/me|session|tenants|tenants\/[^/]+)$/;
const MOST_TABS = 600;

const stand = inject('stand');
const wanted = process.env.PAGES?.split(',');
const shown = PAGES.filter((one) => wanted === undefined || wanted.includes(one.name));
let browser: Browser;
let signedIn: BrowserContext;
let stranger: BrowserContext;

beforeAll(async () => {
  browser = await openBrowser();
  signedIn = await openWindow(browser, stand.url, stand.owner);
  stranger = await openWindow(browser, stand.url);
});
afterAll(() => browser.close());

describe.each(shown)('$name', (one) => {
  if (one.missing !== undefined) {
    test.skip(`is tried (${one.missing})`, () => undefined);
    return;
  }
  const opened: Page[] = [];
  afterAll(() => Promise.all(opened.map((page) => page.close())));

  async function open(tenant: string, answer?: (route: Route) => Promise<void>): Promise<Page> {
    const page = await (one.as === null ? stranger : signedIn).newPage();
    opened.push(page);
    const path = await pathOf(page, one, tenant);
    if (answer !== undefined) {
      await page.route('**/admin/v1/**', async (route) => {
        const { pathname } = new URL(route.request().url());
        await (FRAME.test(pathname) ? route.continue() : answer(route));
      });
    }
    await page.goto(`/console${path}`);
    await settled(page);
    return page;
  }

  test('with data', async () => {
    const page = await open(TENANT);
    const heading = await page.locator('h1').first().innerText();
    if (one.name !== 'not-found') expect(heading).not.toMatch(/There is no such page|could not be loaded/);
    expect(
      await page
        .getByRole('alert')
        .filter({ hasText: /Cannot show|could not be/ })
        .count(),
    ).toBe(0);
    await tried(page, `${one.name}-data`);
    expect(await paleBelowThePointer(page)).toEqual([]);
    expect(await notReached(page)).toEqual([]);
    await page.setViewportSize({ width: 320, height: 800 });
    await settled(page);
    await keepPicture(page, `${one.name}-data-320`);
    expect(await beyondTheEdge(page)).toEqual([]);
    expect(await violations(page)).toEqual([]);
  });

  test.skipIf(one.fixed)('without data', async () => {
    const page = await (one.path.includes('$tenant') && one.link === undefined
      ? open(EMPTY_TENANT)
      : open(TENANT, emptied));
    await tried(page, `${one.name}-empty`);
  });

  test.skipIf(one.fixed)('with failures', async () => {
    const page = await open(TENANT, failed);
    await page.getByRole('alert').first().waitFor();
    expect(await page.getByRole('alert').first().innerText()).toContain('The database is away');
    await tried(page, `${one.name}-error`);
  });
});

async function tried(page: Page, name: string): Promise<void> {
  const found: Record<string, string[]> = {};
  for (const scheme of SCHEMES) {
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
    await keepPicture(page, `${name}-${scheme}`);
    const broken = await violations(page);
    if (broken.length > 0) found[scheme] = broken;
  }
  expect(found).toEqual({});
}

/** What has too little contrast once the pointer is over it: axe looks at a page as it stands (WCAG 1.4.3). */
async function paleBelowThePointer(page: Page): Promise<string[]> {
  const found: string[] = [];
  for (const colorScheme of SCHEMES) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    for (const kind of ['main button[data-variant="filled"]:enabled', 'main tbody tr']) {
      const target = page.locator(kind).first();
      if (!(await target.isVisible())) continue;
      await target.hover();
      found.push(...(await violations(page, 'color-contrast')).map((line) => `${colorScheme}, over ${kind}: ${line}`));
    }
  }
  await page.mouse.move(0, 0);
  return found;
}

/** Answers a list with an empty one, and all else as it is. */
async function emptied(route: Route): Promise<void> {
  const response = await route.fetch();
  const body = (await response.json().catch(() => null)) as Record<string, unknown> | null;
  if (body === null || !Array.isArray(body.data)) return route.fulfill({ response });
  return route.fulfill({ response, json: { ...body, data: [], has_more: false } });
}

/** Answers as a gateway does whose database is away. */
function failed(route: Route): Promise<void> {
  const error = {
    type: 'api_error',
    code: 'unavailable',
    message: 'The database is away; try again shortly.',
    param: null,
  };
  return route.fulfill({ status: 503, json: { error }, headers: { 'x-request-id': 'req_00000000' } });
}

/** What a pointer can use and Tab never reaches, and what has the focus without being seen (WCAG 2.1.1, 2.4.11). */
async function notReached(page: Page): Promise<string[]> {
  await page.evaluate(() => {
    const usable = 'a[href], button, input, select, textarea, summary, [tabindex], [role="button"], [role="switch"]';
    const within = '[role="tab"], [role="radio"], [role="option"], [role="menuitem"], [role="gridcell"]';
    let number = 0;
    for (const each of document.querySelectorAll<HTMLElement>(usable)) {
      const style = getComputedStyle(each);
      const box = each.getBoundingClientRect();
      const away = style.visibility === 'hidden' || box.width === 0 || box.height === 0 || each.closest('[inert]');
      const off = each.matches(':disabled, [aria-disabled="true"], [aria-hidden="true"], [type="hidden"]');
      const roving = each.tabIndex < 0 && (each.matches(within) || each.matches('h1, input[type="radio"]'));
      const inner = each.tabIndex < 0 && each.closest('[role="combobox"], .mantine-InputWrapper-root, [role="grid"]');
      if (away || off || roving || inner || each.closest('[aria-hidden="true"]')) continue;
      if (each.matches('[tabindex="-1"]') && !each.matches('a, button, input, select, textarea')) continue;
      if (each instanceof HTMLInputElement && each.type === 'radio' && !each.checked) continue;
      each.dataset.reach = String((number += 1));
    }
    (document.activeElement as HTMLElement | null)?.blur();
  });
  const hidden = new Set<string>();
  let repeated = 0;
  for (let pressed = 0; pressed < MOST_TABS; pressed += 1) {
    await page.keyboard.press('Tab');
    const seen = await page.evaluate(() => {
      const each = document.activeElement as HTMLElement | null;
      if (each === null || each === document.body) return { again: true, same: false, hidden: '' };
      const again = each.dataset.reached !== undefined;
      const same = each.dataset.reached === 'last'; // a date keeps the focus for each of its parts
      for (const last of document.querySelectorAll<HTMLElement>('[data-reached="last"]')) last.dataset.reached = '';
      each.dataset.reached = 'last';
      const box = each.getBoundingClientRect();
      const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
      const covered = top !== null && !each.contains(top) && !top.contains(each) && box.width > 0;
      const fixed = covered && ['fixed', 'sticky'].includes(getComputedStyle(top).position);
      return { again, same, hidden: fixed ? each.outerHTML.slice(0, 160) : '' };
    });
    if (seen.hidden !== '') hidden.add(`has the focus under something else: ${seen.hidden}`);
    if (!seen.same) repeated = seen.again ? repeated + 1 : 0; // past the last element Tab leaves the page, and begins anew
    if (repeated > 25) break;
  }
  const missed = await page
    .locator('[data-reach]:not([data-reached])')
    .evaluateAll((all) => all.map((each) => `Tab never reaches: ${each.outerHTML.slice(0, 160)}`));
  return [...missed, ...hidden];
}

/** What makes the page scroll sideways, but for tables, which may scroll in themselves (WCAG 1.4.10). */
function beyondTheEdge(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const root = document.documentElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const wide = [...document.querySelectorAll<HTMLElement>('body *')].filter(
      (each) => each.getBoundingClientRect().right > root.clientWidth + 1,
    );
    return wide.slice(0, 5).map((each) => `${root.scrollWidth} px wide: ${each.outerHTML.slice(0, 160)}`);
  });
}
