/**
 * Before all tests: a demonstration (made once, kept for half a day), a copy of it for this run, and a real gateway on
 * the copy. Tests get it as `inject('stand')`.
 */
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';

import type { TestProject } from 'vitest/node';

import { ADMIN, call, FINANCE, givePassword, OWNER, signInByLink } from './people';
import { answers, freePort, RESULTS, Role, ROOT, turnpike } from './processes';

const KEPT_MS = 12 * 3_600_000;

/** Where the tests' gateway is. */
export interface Stand {
  url: string;
  /** Its data folder. */
  folder: string;
  /** A demonstration that nobody uses: copy it. */
  demonstration: string;
  /** The owner's `Cookie` header. */
  owner: string;
}

declare module 'vitest' {
  export interface ProvidedContext {
    stand: Stand;
  }
}

export default async function setUp(project: TestProject): Promise<() => Promise<void>> {
  rmSync(RESULTS, { recursive: true, force: true });
  mkdirSync(RESULTS, { recursive: true });
  const demonstration = madeDemonstration();
  const folder = join(RESULTS, 'data');
  copyDemonstration(demonstration, folder);
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const role = new Role('serve', ['serve', '--data-dir', folder, '--port', String(port)], async () => {
    return (await answers(url)) && existsSync(join(folder, 'sign-in-link'));
  });
  await role.start();
  try {
    const owner = await signInByLink(url, folder);
    for (const email of [FINANCE, ADMIN]) await givePassword(url, owner, email);
    await makeEmptyTenant(url, owner.cookie);
    await makeBatch(url, owner.cookie);
    await makeAdapter(url, owner.cookie);
    project.provide('stand', { url, folder, demonstration, owner: owner.cookie });
  } catch (error) {
    await role.stop('SIGKILL');
    throw error;
  }
  return async () => {
    await role.stop();
    rmSync(folder, { recursive: true, force: true });
  };
}

/** The folder of a demonstration that is of this month and not old. `DEMONSTRATION` names one that is there. */
function madeDemonstration(): string {
  const given = process.env.DEMONSTRATION;
  if (given !== undefined) return given;
  const folder = join(ROOT, '.console/demonstration');
  const mark = join(folder, 'demonstration.json');
  if (existsSync(mark)) {
    const { state, until } = JSON.parse(readFileSync(mark, 'utf8')) as { state: string; until: number };
    const made = new Date(until / 1_000);
    const sameMonth = made.toISOString().slice(0, 7) === new Date().toISOString().slice(0, 7);
    if (state === 'made' && sameMonth && Date.now() - made.getTime() < KEPT_MS) return folder;
  }
  rmSync(folder, { recursive: true, force: true });
  turnpike('demo', '--make-only', '--data-dir', folder);
  return folder;
}

/** Copy a demonstration that no process uses. */
export function copyDemonstration(from: string, to: string): void {
  rmSync(to, { recursive: true, force: true });
  cpSync(from, to, { recursive: true, preserveTimestamps: true });
  execFileSync('chmod', ['-R', 'go-rwx', to]);
}

/** A tenant that has nothing yet, for pages without data. */
async function makeEmptyTenant(url: string, cookie: string): Promise<void> {
  await call(url, { cookie }, 'POST', '/admin/v1/tenants', { name: EMPTY_TENANT });
}

/** A batch of a tenant that has no other, whose second line is wrong; and so a file. */
async function makeBatch(url: string, cookie: string): Promise<void> {
  const tenant = '/admin/v1/tenants/nordlicht';
  const projects = await call<{ data: { name: string }[] }>(url, { cookie }, 'GET', `${tenant}/projects`);
  const { key } = await call<{ key: string }>(url, { cookie }, 'POST', `${tenant}/keys`, {
    project: projects.data[0]!.name,
    name: 'batches',
  });
  const headers = { authorization: `Bearer ${key}` };
  const form = new FormData();
  const body = { model: 'stdlib-qa', max_tokens: 5, messages: [{ role: 'user', content: 'What does csv do?' }] };
  const line = JSON.stringify({ custom_id: 'csv', method: 'POST', url: '/v1/chat/completions', body });
  form.append('purpose', 'batch');
  form.append('file', new Blob([`${line}\n${line}\n`]), 'questions.jsonl');
  const file = await answered(await fetch(`${url}/v1/files`, { method: 'POST', headers, body: form }));
  const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' };
  await answered(
    await fetch(`${url}/v1/batches`, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json' },
      body: JSON.stringify(order),
    }),
  );
}

/** An adapter of the same tenant, of rank 1, for the first layer's queries. */
async function makeAdapter(url: string, cookie: string): Promise<void> {
  const tenant = '/admin/v1/tenants/nordlicht';
  const projects = await call<{ data: { name: string }[] }>(url, { cookie }, 'GET', `${tenant}/projects`);
  const model = JSON.parse(readFileSync(join(ROOT, 'models/stdlib-qa/config.json'), 'utf8')) as Record<string, number>;
  const { hidden_size: hidden, num_attention_heads: heads, head_dim: dim } = model as Record<string, number>;
  const queries = heads! * (dim ?? hidden! / heads!);
  const name = 'base_model.model.model.layers.0.self_attn.q_proj.lora_';
  const header = JSON.stringify({
    [`${name}A.weight`]: { dtype: 'F32', shape: [1, hidden], data_offsets: [0, 4 * hidden!] },
    [`${name}B.weight`]: { dtype: 'F32', shape: [queries, 1], data_offsets: [4 * hidden!, 4 * (hidden! + queries)] },
  });
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  const form = new FormData();
  form.append('model', 'stdlib-qa');
  form.append('name', 'support');
  form.append('config', JSON.stringify({ peft_type: 'LORA', r: 1, lora_alpha: 2, target_modules: ['q_proj'] }));
  form.append('file', new Blob([length, header, new Uint8Array(4 * (hidden! + queries))]), 'adapter_model.safetensors');
  const path = `${url}${tenant}/projects/${encodeURIComponent(projects.data[0]!.name)}/adapters`;
  const headers = { 'x-turnpike-csrf': '1', cookie };
  await answered(await fetch(path, { method: 'POST', headers, body: form }));
}

async function answered(response: Response): Promise<{ id: string }> {
  if (!response.ok) throw new Error(`${response.url}: ${await response.text()}`);
  return (await response.json()) as { id: string };
}

export const EMPTY_TENANT = 'newcomer';
export { OWNER };
