/**
 * The screen while something is away: the last good data with its age, and fresh data afterwards, without a reload.
 * A gateway, a worker and a database of this test's own are killed for it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface, type Interface } from 'node:readline';

import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, inject, test } from 'vitest';

import { openBrowser, openWindow, settled } from './stand/browser';
import { copyDemonstration } from './stand/global_setup';
import { call, type Session, signInByLink } from './stand/people';
import { answers, freePort, RESULTS, Role, ROOT, turnpike } from './stand/processes';

const AGE = /As of .* ago/;
const TIMEOUT_MS = 45_000;

const stand = inject('stand');
let browser: Browser;
const running: Role[] = [];

beforeAll(async () => {
  browser = await openBrowser();
});
afterEach(async () => {
  for (const role of running.splice(0).reverse()) await role.stop();
});
afterAll(() => browser.close());

interface Own {
  url: string;
  folder: string;
  gateway: Role;
  worker: Role;
}

/** A gateway and a worker on a data folder. */
async function started(name: string, folder: string, ...words: string[]): Promise<Own> {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const common = ['--data-dir', folder, ...words];
  const gateway = new Role(`${name}-gateway`, ['gateway', ...common, '--port', String(port)], () => answers(url));
  const worker = new Role(`${name}-worker`, ['worker', ...common], () => Promise.resolve(true));
  running.push(gateway, worker);
  await gateway.start();
  await worker.start();
  return { url, folder, gateway, worker };
}

/** The page's words about something, once they are there. */
async function shows(page: Page, text: string | RegExp): Promise<void> {
  await page.getByText(text).first().waitFor({ timeout: TIMEOUT_MS });
}

async function reloads(page: Page): Promise<() => number> {
  let count = 0;
  page.on('load', () => {
    count += 1;
  });
  return () => count;
}

test('after kill -9 of the gateway and of the worker', async () => {
  const folder = join(RESULTS, 'outage-data');
  copyDemonstration(stand.demonstration, folder);
  const own = await started('outage', folder, '--model', join(ROOT, 'models/stdlib-qa'));
  const link = turnpike('users', 'create', 'watcher@nordlicht.example', '--tenant', 'nordlicht', '--role', 'owner', '--data-dir', folder, '--url', own.url); // prettier-ignore
  const session = await openLink(own.url, link);
  const page = await (await openWindow(browser, own.url, session.cookie)).newPage();
  await page.goto('/console/tenants/nordlicht/projects');
  await settled(page);
  const loaded = await reloads(page);
  await shows(page, 'archive-search');

  await own.gateway.stop('SIGKILL');
  await shows(page, AGE);
  await shows(page, 'archive-search');
  await own.gateway.start();
  await page.getByText(AGE).first().waitFor({ state: 'detached', timeout: TIMEOUT_MS });
  await call(own.url, session, 'POST', '/admin/v1/tenants/nordlicht/projects', { name: 'made-meanwhile' });
  await shows(page, 'made-meanwhile');

  await own.worker.stop('SIGKILL');
  const projects = '/admin/v1/tenants/nordlicht/projects';
  await call(own.url, session, 'POST', projects, { name: 'made-without-a-worker' });
  await shows(page, 'made-without-a-worker');
  await own.worker.start();
  await call(own.url, session, 'POST', projects, { name: 'made-with-a-worker' });
  await shows(page, 'made-with-a-worker');
  expect(loaded()).toBe(0);
});

test('while the database is away for 10 s', async () => {
  const database = await Database.start();
  try {
    const folder = join(RESULTS, 'database-data');
    mkdirSync(folder, { recursive: true });
    const secrets = join(folder, 'own-secrets.json');
    turnpike('secrets', 'create', secrets);
    const settings = ['--database-url', database.url, '--secrets-file', secrets];
    turnpike('migrate', '--database-url', database.url);
    const common = [...settings, '--data-dir', folder];
    turnpike('tenants', 'create', 'nordlicht', ...common);
    const model = join(ROOT, 'models/stdlib-qa');
    turnpike('prices', 'set', 'stdlib-qa', '--uncached', '0.4', '--read', '0.04', '--output', '1.6', ...common);
    const own = await started('database', folder, ...settings, '--model', model);
    const link = turnpike('users', 'create', 'watcher@nordlicht.example', '--tenant', 'nordlicht', '--role', 'owner', '--url', own.url, ...common); // prettier-ignore
    const session = await openLink(own.url, link);
    const page = await (await openWindow(browser, own.url, session.cookie)).newPage();
    await page.goto('/console/tenants/nordlicht/projects');
    await settled(page);
    const loaded = await reloads(page);
    await shows(page, 'default');

    await database.say('stop');
    const since = Date.now();
    await shows(page, AGE);
    await shows(page, 'default');
    await new Promise((done) => setTimeout(done, Math.max(0, 10_000 - (Date.now() - since))));
    await database.say('start');
    await page.getByText(AGE).first().waitFor({ state: 'detached', timeout: TIMEOUT_MS });
    await call(own.url, session, 'POST', '/admin/v1/tenants/nordlicht/projects', { name: 'made-afterwards' });
    await shows(page, 'made-afterwards');
    expect(loaded()).toBe(0);
  } finally {
    for (const role of running.splice(0).reverse()) await role.stop();
    await database.close();
  }
});

/** Sign in by a link that a command printed. */
async function openLink(url: string, printed: string): Promise<Session> {
  const folder = join(RESULTS, 'links');
  mkdirSync(folder, { recursive: true });
  const { writeFileSync } = await import('node:fs');
  writeFileSync(join(folder, 'sign-in-link'), printed.trim().split('\n').pop()!);
  return signInByLink(url, folder);
}

/** A PostgreSQL of the test's own (`tests/console_database.py`), which stops and starts when it is told to. */
class Database {
  private constructor(
    private readonly child: ChildProcess,
    private readonly lines: Interface,
    readonly url: string,
  ) {}

  static async start(): Promise<Database> {
    const python = join(ROOT, '.venv/bin/python');
    const child = spawn(python, ['-m', 'tests.console_database'], { cwd: ROOT, stdio: ['pipe', 'pipe', 'inherit'] });
    const lines = createInterface({ input: child.stdout! });
    const url = await new Promise<string>((done) => lines.once('line', done));
    return new Database(child, lines, url);
  }

  /** Say `stop` or `start`, and wait until it is done. */
  async say(word: 'stop' | 'start'): Promise<void> {
    const answered = new Promise((done) => this.lines.once('line', done));
    this.child.stdin!.write(`${word}\n`);
    await answered;
  }

  async close(): Promise<void> {
    const ended = new Promise((done) => this.child.once('exit', done));
    this.child.stdin!.end();
    await ended;
  }
}
