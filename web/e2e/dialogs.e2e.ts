/**
 * Every form and dialog: nothing that axe finds against WCAG 2.2 AA, narrow and wide, light and dark; what the server
 * says of a value stands at the field that it was typed in, in words and without a path, and the field has the focus.
 */
import type { Browser, BrowserContext, Locator, Page, Route } from 'playwright-core';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';

import { PAGES, pathOf } from './pages';
import { keepPicture, openBrowser, openWindow, type Scheme, settled, violations } from './stand/browser';

const TENANT = 'nordlicht';
const WAIT_MS = 1_500;
const LOOKS: [Scheme, number][] = [
  ['light', 1440],
  ['dark', 375],
];
/** What forms send that nobody types: whether it is only tried, ids that make a repeated call count once, and so on. */
const NOT_TYPED = new Set(['dry_run', 'id', 'token', 'currency', 'stream', 'stream_options.include_usage']);
/** What a form sends that is typed in another one: a new key's choices in the dialog; only keys of a tenant have a role. */
const ELSEWHERE: Record<string, string[]> = {
  'keys, form 0': ['scopes', 'networks', 'expires_at', 'role', 'models', 'lanes'],
  'keys, More choices': ['role'],
  'payments, Reminders: on': ['enabled'], // what the button itself says
  'terms, Set terms': ['terms.minimum', 'terms.commitment'], // there is none: its fields come with it
};

const stand = inject('stand');
const wanted = process.env.PAGES?.split(',');
const shown = PAGES.filter((one) => wanted === undefined || wanted.includes(one.name));
let browser: Browser;
let signedIn: BrowserContext;
let stranger: BrowserContext;
/** What is refused next, and of which field. */
let refusal = { message: '', param: null as string | null };
const seen = new Set<string>();

beforeAll(async () => {
  browser = await openBrowser();
  signedIn = await openWindow(browser, stand.url, stand.owner);
  stranger = await openWindow(browser, stand.url);
  for (const context of [signedIn, stranger]) await context.route('**/{admin,v1}/**', refuseChanges);
});
afterAll(() => browser.close());

/** Reads go through; whatever would change something is refused, in the server's form. */
async function refuseChanges(route: Route): Promise<void> {
  if (route.request().method() === 'GET') return route.fallback();
  const error = { type: 'invalid_request_error', code: 'invalid_value', ...refusal };
  return route.fulfill({ status: 400, json: { error } });
}

test.each(shown)('forms and dialogs of $name', { timeout: 600_000 }, async (one) => {
  const page = await (one.as === null ? stranger : signedIn).newPage();
  const path = `/console${await pathOf(page, one, TENANT)}`;
  const open = async (): Promise<void> => {
    await page.goto(path);
    await settled(page);
  };
  await open();
  const found: Record<string, string[]> = {};
  const note = (where: string, what: string[]): void => {
    const stray = what.filter((line) => !ELSEWHERE[`${one.name}, ${where}`]?.includes(line.split(' ')[0]!));
    if (stray.length > 0) found[where] = [...(found[where] ?? []), ...stray];
  };
  const forms = page.locator('main form:not([role="search"])');
  for (let place = 0; place < (await forms.count()); place += 1)
    note(`form ${place}`, await strayErrors(page, forms.nth(place)));
  await open();
  // Of a table's rows the first two: the others have the same buttons.
  const rows = 'tbody tr:nth-child(n + 3) button';
  const buttons = page.locator(`main button:not([type="submit"]):not(${rows}):enabled`);
  const labels = await buttons.evaluateAll((all) => all.map((each) => (each as HTMLElement).innerText.trim()));
  for (const [place, label] of labels.entries()) {
    if (label === '' || labels.indexOf(label) !== place || seen.has(`${one.name} ${label}`)) continue;
    seen.add(`${one.name} ${label}`);
    if ((await buttons.count()) !== labels.length) await open();
    await buttons.nth(place).click();
    const dialog = page.getByRole('dialog');
    const opened = await dialog.waitFor({ timeout: WAIT_MS }).then(
      () => true,
      () => false,
    );
    if (!opened) {
      if (!page.url().endsWith(path)) await open();
      continue;
    }
    await page.evaluate(() => new Promise((done) => setTimeout(done, 300))); // it comes in by and by
    for (const [colorScheme, width] of LOOKS) {
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
      await page.setViewportSize({ width, height: 900 });
      note(`${label}, ${colorScheme}, ${width} px`, await violations(page));
      await keepPicture(page, `${one.name}-dialog-${label.replace(/\W+/g, '-')}-${width}`);
    }
    await page.setViewportSize({ width: 1440, height: 900 });
    const form = dialog.locator('form');
    if ((await form.count()) > 0) note(label, await strayErrors(page, form.first()));
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached', timeout: WAIT_MS }).catch(open);
  }
  await page.close();
  if (process.env.TELL) console.log(one.name, JSON.stringify(found, null, 1));
  expect(found).toEqual({});
});

/** The values of a form whose problem stands elsewhere than at a field, or at a field without the focus. */
async function strayErrors(page: Page, form: Locator): Promise<string[]> {
  const sent = async (message: string, param: string | null): Promise<unknown> => {
    refusal = { message, param };
    const request = page
      .waitForRequest((asked) => asked.method() !== 'GET' && /\/(admin|v1)\//.test(asked.url()), { timeout: WAIT_MS })
      .catch(() => null);
    await form.evaluate((element) => {
      (document.activeElement as HTMLElement | null)?.blur();
      (element as HTMLFormElement).noValidate = true;
      (element as HTMLFormElement).requestSubmit();
    });
    return (await request)?.postDataJSON();
  };
  const body = await sent('Not like this.', null);
  if (body === null || body === undefined) return [];
  await form.getByRole('alert').getByText('Not like this.').waitFor({ timeout: WAIT_MS });
  const stray: string[] = [];
  for (const [number, path] of leavesOf(body).entries()) {
    if (NOT_TYPED.has(path)) continue;
    await sent(`$.${path}: it must be another one (${number})`, `$.${path}`);
    const words = `It must be another one (${number})`;
    await form.getByText(`be another one (${number})`).first().waitFor({ state: 'attached', timeout: WAIT_MS });
    const at = await form.evaluate((element, text) => {
      const messages = [...element.querySelectorAll('.mantine-InputWrapper-error')];
      const fields = messages.filter((each) => each.textContent === text).map((each) => each.parentElement!);
      if (fields.length !== 1) return `stands at ${fields.length} fields`;
      const fixed = fields[0]!.querySelector(':disabled') !== null;
      if (!fixed && !fields[0]!.contains(document.activeElement)) return 'has not the focus';
      const alert = element.querySelector<HTMLElement>('[role="alert"]');
      return alert !== null && !alert.hidden ? 'is said twice' : '';
    }, words);
    if (at !== '') stray.push(`${path} ${at}`);
  }
  return stray;
}

/** The paths of all values of a body, such as `name`, `terms.minimum.amount` and `networks[0]`. */
function leavesOf(value: unknown, path = ''): string[] {
  if (value === null || typeof value !== 'object') return [path];
  if (Array.isArray(value)) {
    return value.length === 0 ? [path] : value.flatMap((each, place) => leavesOf(each, `${path}[${place}]`));
  }
  return Object.entries(value).flatMap(([name, each]) => leavesOf(each, path === '' ? name : `${path}.${name}`));
}
