/** How many clicks the commonest tasks take, from the page after signing in; keys that one presses are not counted. */
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';

import { Clicks, openBrowser, openWindow, settled } from './stand/browser';
import { ADMIN, FINANCE, OWNER, PASSWORD } from './stand/people';

const stand = inject('stand');
let browser: Browser;

beforeAll(async () => {
  browser = await openBrowser();
});
afterAll(() => browser.close());

/** The sign-in page, filled in; what is clicked from here on is counted. */
async function atTheDoor(email: string, next?: string): Promise<{ page: Page; clicks: Clicks }> {
  const context = await openWindow(browser, stand.url);
  const page = await context.newPage();
  await page.goto(`/console/sign-in${next === undefined ? '' : `?next=${encodeURIComponent(next)}`}`);
  await page.getByLabel('E-mail address').fill(email);
  await page.locator('input[type="password"]').fill(PASSWORD);
  return { page, clicks: new Clicks() };
}

test('finance has an invoice exported and verified in 4 clicks', async () => {
  const { page, clicks } = await atTheDoor(FINANCE);
  await clicks.on(page.getByRole('button', { name: 'Sign in', exact: true }));
  await page.waitForURL(/\/invoices$/);
  await clicks.on(page.getByRole('link', { name: /^DEMO-\d/ }).first());
  const file = page.waitForEvent('download');
  await clicks.on(page.getByRole('button', { name: 'Export and verify' }));
  expect((await file).suggestedFilename()).toMatch(/^DEMO.*\.zip$/);
  await page.locator('[data-verified]').waitFor({ timeout: 60_000 });
  expect(clicks.count).toBeLessThanOrEqual(4);
});

test('an admin has a new key in 3 clicks', async () => {
  const { page, clicks } = await atTheDoor(ADMIN);
  await clicks.on(page.getByRole('button', { name: 'Sign in', exact: true }));
  await settled(page);
  await clicks.on(page.getByRole('link', { name: 'Keys', exact: true }));
  await page.getByLabel('Name of a new key').fill('made by a test');
  await clicks.on(page.getByRole('button', { name: 'Create key' }).first());
  await page.getByRole('dialog', { name: 'Your new key' }).waitFor();
  expect(await page.getByText(/tp_live_/).count()).toBeGreaterThan(0);
  expect(clicks.count).toBeLessThanOrEqual(3);
});

test('why the last request missed is found in 3 clicks', async () => {
  const { page, clicks } = await atTheDoor(ADMIN);
  await clicks.on(page.getByRole('button', { name: 'Sign in', exact: true }));
  await settled(page);
  await clicks.on(page.getByRole('link', { name: 'Requests', exact: true }));
  await settled(page);
  await clicks.on(page.locator('main tbody a').first());
  await page
    .getByText(/missed|Nothing was missed|read from the cache/i)
    .first()
    .waitFor({ timeout: 20_000 });
  expect(clicks.count).toBeLessThanOrEqual(3);
});

test('an operator approves a price in 3 clicks, with what it changes on screen', async () => {
  const { page, clicks } = await atTheDoor(OWNER);
  await clicks.on(page.getByRole('button', { name: 'Sign in', exact: true }));
  await settled(page);
  const waiting = page.getByRole('button', { name: /^Approve …: Prices of / });
  await waiting.first().waitFor({ timeout: 20_000 });
  const before = await waiting.count();
  await clicks.on(waiting.first());
  const dialog = page.getByRole('dialog', { name: /^Approve: Prices of / });
  await dialog.getByRole('columnheader', { name: 'every lane' }).waitFor();
  await clicks.on(dialog.getByRole('button', { name: 'Approve' }));
  await dialog.waitFor({ state: 'detached', timeout: 20_000 });
  expect(await waiting.count()).toBe(before - 1);
  expect(clicks.count).toBeLessThanOrEqual(3);
});
