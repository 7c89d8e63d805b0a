/** Long lists: usable after a second's work with a thousand rows, found by name, and as they were left after Back and Forward. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';

import { openBrowser, openWindow, settled } from './stand/browser';
import { call } from './stand/people';
import { RESULTS } from './stand/processes';

const MANY = 1_000;
const AT_ONCE = 8;
const MOST_MS = 1_000;
const MOST_MS_FOR_ALL = 3_000;
const TRIES = 3;
const MS_A_TICK = 10;
const TENANT = 'thousand-keys';
const TENANT_OF_REQUESTS = 'nordlicht';

const stand = inject('stand');
let browser: Browser;
let context: BrowserContext;
/** Milliseconds, from the least: of processor time that page and gateway took, and on the clock. */
const figures: Record<string, { work: number[]; clock: number[] }> = {};

beforeAll(async () => {
  browser = await openBrowser();
  context = await openWindow(browser, stand.url, stand.owner);
  const post = (path: string, body: unknown): Promise<unknown> =>
    call(stand.url, { cookie: stand.owner }, 'POST', `/admin/v1${path}`, body);
  await post('/tenants', { name: TENANT });
  await manyTimes((number) => post(`/tenants/${TENANT}/keys`, { project: 'default', name: `key ${number}` }));
  await manyTimes((number) => post('/tenants', { name: `tenant-${number}` }));
});
afterAll(async () => {
  await browser.close();
  writeFileSync(join(RESULTS, 'lists.json'), JSON.stringify(figures, null, 2));
});

async function manyTimes(make: (number: number) => Promise<unknown>): Promise<void> {
  for (let first = 0; first < MANY; first += AT_ONCE) {
    const numbers = Array.from({ length: Math.min(AT_ONCE, MANY - first) }, (_, place) => first + place);
    await Promise.all(numbers.map(make));
  }
}

const LISTS = [
  { name: 'keys', path: `/tenants/${TENANT}/keys?show=all`, find: 'key 7', more: true, sort: undefined },
  { name: 'tenants', path: '/platform/tenants', find: undefined, more: true, sort: 'Name' },
  { name: 'requests', path: `/tenants/${TENANT_OF_REQUESTS}/requests?lane=standard`, more: true, sort: 'Total' },
  { name: 'invoices', path: `/platform/invoices?kind=invoice`, more: false, sort: undefined },
  { name: 'audit log', path: `/platform/audit?action=tenant.*`, more: true, sort: undefined },
] as const;

/** What is shown, its path, how many rows it has then, and the most milliseconds of work. */
const FAST: [string, string, number, number][] = [
  ['the first of 1,000 keys', `/tenants/${TENANT}/keys`, 50, MOST_MS],
  ['all 1,000 keys', `/tenants/${TENANT}/keys?pages=10`, MANY, MOST_MS_FOR_ALL],
  ['the first of 1,000 tenants', '/platform/tenants', 50, MOST_MS],
  ['all 1,000 tenants', '/platform/tenants?pages=11', MANY, MOST_MS_FOR_ALL],
  ['the first of 1,000 requests', `/tenants/${TENANT_OF_REQUESTS}/requests`, 50, MOST_MS],
  ['1,000 requests', `/tenants/${TENANT_OF_REQUESTS}/requests?pages=10`, MANY, MOST_MS_FOR_ALL],
  ['the first of 1,000 changes', '/platform/audit?action=tenant.*', 50, MOST_MS],
];

test.each(FAST)('%s: usable after little work', async (name, path, count, most) => {
  const work: number[] = [];
  const clock: number[] = [];
  for (let number = 0; number < TRIES; number += 1) {
    const page = await context.newPage();
    const metrics = await context.newCDPSession(page);
    await metrics.send('Performance.enable', { timeDomain: 'threadTicks' });
    const before = workOf(stand.folder);
    await page.goto(`/console${path}`, { waitUntil: 'commit' });
    await page.waitForFunction(
      (least) =>
        document.querySelectorAll('main tbody tr').length >= least && !document.querySelector('[aria-busy="true"]'),
      count,
      { polling: 'raf' },
    );
    clock.push(await page.evaluate(() => Math.round(performance.now())));
    const task = (await metrics.send('Performance.getMetrics')).metrics.find((one) => one.name === 'TaskDuration');
    work.push(Math.round(task!.value * 1_000) + workOf(stand.folder) - before);
    await page.close();
  }
  figures[name] = { work: ordered(work), clock: ordered(clock) };
  // What page and gateway work, on however busy a machine: of the quickest, for some of it is for others.
  expect(ordered(work)[0]).toBeLessThanOrEqual(most);
});

describe.each(LISTS)('$name', (list) => {
  test('is as it was left after Back, Forward and reloading, and in another window', async () => {
    const page = await context.newPage();
    await page.setViewportSize({ width: 1280, height: 260 });
    await page.goto(`/console${list.path}`);
    await settled(page);
    const first = await rows(page).count();
    if (list.more) {
      await page.getByRole('button', { name: 'Show more' }).click();
      await page.waitForFunction((count) => document.querySelectorAll('main tbody tr').length > count, first);
    }
    if (list.sort !== undefined) await page.getByRole('button', { name: list.sort, exact: true }).click();
    await scrollDown(page, 0.7);
    const left = await viewOf(page);
    expect(left.top).toBeGreaterThan(50);

    await page.getByRole('link', { name: 'Fleet', exact: true }).click();
    await page.waitForURL(/\/fleet$/);
    await settled(page);
    await page.goBack();
    await seen(page, left);
    await page.goForward();
    await page.waitForURL(/\/fleet$/);
    await page.goBack();
    await seen(page, left);
    await page.reload();
    await seen(page, left);
    const other = await context.newPage();
    await other.goto(page.url());
    await seen(other, { ...left, top: 0 });
    await other.close();
    await page.close();
  });
});

test('a key among a thousand is found by its name', async () => {
  const page = await context.newPage();
  await page.goto(`/console/tenants/${TENANT}/keys`);
  await settled(page);
  await page.getByLabel('Find').fill('key 44');
  await page.waitForFunction(() => document.querySelectorAll('main tbody tr').length === 11);
  expect(await page.getByText('11 of').innerText()).toBe('11 of 1000 are shown.');
  await page.close();
});

test('the requests fit a screen of 1440 pixels', async () => {
  const page = await context.newPage();
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.goto(`/console/tenants/${TENANT_OF_REQUESTS}/requests`);
  await settled(page);
  const table = page.getByRole('region', { name: `Requests of ${TENANT_OF_REQUESTS}` });
  expect(await table.evaluate((region) => region.scrollWidth - region.clientWidth)).toBe(0);
  await page.close();
});

test('a request opens beside the list, and the list stays where it is', async () => {
  const page = await context.newPage();
  await page.setViewportSize({ width: 1280, height: 260 });
  await page.goto(`/console/tenants/${TENANT_OF_REQUESTS}/requests`);
  await settled(page);
  await page.getByRole('button', { name: 'Total', exact: true }).click();
  const link = rows(page).nth(25).getByRole('link').first();
  await link.scrollIntoViewIfNeeded();
  const left = await viewOf(page);
  expect(left.top).toBeGreaterThan(50);
  await link.click();
  await page.getByRole('dialog', { name: 'Request' }).waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  await seen(page, left);
  await page.close();
});

interface View {
  search: string;
  rows: string[];
  top: number;
}

/** The milliseconds of processor time that the processes took which work on a data folder. */
function workOf(folder: string): number {
  let ticks = 0;
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      if (!readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(folder)) continue;
      const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ');
      ticks += Number(fields[11]) + Number(fields[12]);
    } catch {
      continue; // it has just ended
    }
  }
  return ticks * MS_A_TICK;
}

const ordered = (numbers: number[]): number[] => [...numbers].sort((one, other) => one - other);
const rows = (page: Page) => page.locator('main tbody tr');

/** What a list shows: its filters and order, its rows by their first words, and how far it is scrolled. */
function viewOf(page: Page): Promise<View> {
  return page.evaluate(() => ({
    search: [...document.querySelectorAll<HTMLInputElement>('main input, main select')]
      .map((each) => each.value)
      .join(),
    rows: [...document.querySelectorAll('main tbody tr')].map((row) => row.querySelector('a, button, td')!.textContent),
    top: Math.round(scrollY),
  }));
}

async function scrollDown(page: Page, part: number): Promise<void> {
  await page.evaluate((at) => scrollTo(0, document.documentElement.scrollHeight * at), part);
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

/** Wait until the page shows the same again. */
async function seen(page: Page, view: View): Promise<void> {
  await settled(page);
  await expect
    .poll(() => viewOf(page).then((now) => ({ ...now, top: Math.abs(now.top - view.top) <= 3 ? view.top : now.top })), {
      timeout: 5_000,
    })
    .toEqual(view);
}
