/** The sums on screen against `turnpike usage` and the invoice's own levels: equal to the last digit. */
import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';

import { openBrowser, openWindow, settled } from './stand/browser';
import { call } from './stand/people';
import { turnpike } from './stand/processes';

const TENANT = 'nordlicht';
const PICO = 10n ** 12n;

const stand = inject('stand');
let browser: Browser;
let signedIn: BrowserContext;

beforeAll(async () => {
  browser = await openBrowser();
  signedIn = await openWindow(browser, stand.url, stand.owner);
});
afterAll(() => browser.close());

interface UsageRow {
  requests: number;
  currency: string;
  cost: string;
}

/** What `turnpike usage` says of a month. */
function usageOf(month: string): { requests: number; cost: bigint } {
  const text = turnpike('usage', '--tenant', TENANT, '--period', month, '--format', 'json', '--data-dir', stand.folder);
  const { rows } = JSON.parse(text) as { rows: UsageRow[] };
  expect(new Set(rows.map((row) => row.currency)).size).toBe(1);
  return {
    requests: rows.reduce((sum, row) => sum + row.requests, 0),
    cost: rows.reduce((sum, row) => sum + pico(row.cost), 0n),
  };
}

function pico(amount: string): bigint {
  const [whole, part = ''] = amount.replace(/[^\d.-]/g, '').split('.');
  return BigInt(whole!) * PICO + BigInt(part.padEnd(12, '0'));
}

async function open(path: string): Promise<Page> {
  const page = await signedIn.newPage();
  await page.goto(`/console${path}`);
  await settled(page);
  return page;
}

test('the overview says what `turnpike usage` says of this month', async () => {
  const month = new Date().toISOString().slice(0, 7);
  const expected = usageOf(month);
  const path = `/admin/v1/tenants/${TENANT}/overview`;
  const { month: said } = await call<{ month: { requests: number; cost: Record<string, string> } }>(
    stand.url,
    { cookie: stand.owner },
    'GET',
    path,
  );
  expect(said.requests).toBe(expected.requests);
  expect(pico(said.cost.EUR!)).toBe(expected.cost);
  const page = await open(`/tenants/${TENANT}/overview`);
  // Rounded for the eye; the exact amount is the value, and what one sees when one points at it.
  const shown = page.locator(`main data[value="${said.cost.EUR!}"]`).first();
  expect(pico((await shown.getAttribute('title'))!)).toBe(expected.cost);
  const [rounded] = amountsIn(await shown.innerText());
  const places = rounded!.split('.')[1]?.length ?? 0;
  const unit = 10n ** BigInt(12 - places);
  expect(pico(rounded!)).toBe(((expected.cost + unit / 2n) / unit) * unit);
});

test('each level of an invoice adds up to the one above it', async () => {
  const page = await open(`/tenants/${TENANT}/invoices`);
  await page
    .getByRole('link', { name: /^DEMO-\d/ })
    .first()
    .click();
  await settled(page);
  expect(await page.getByRole('alert').count()).toBe(0);
  expect(await page.locator('main').innerText()).not.toMatch(/do not add up/);
});

/** The amounts of money in a text, without grouping and trailing zeros. */
function amountsIn(text: string): string[] {
  const found = text.match(/\d[\d,\u202f\u00a0 ]*\.\d+/g) ?? [];
  return found.map((one) => one.replace(/[^\d.]/g, '').replace(/\.?0+$/, ''));
}
