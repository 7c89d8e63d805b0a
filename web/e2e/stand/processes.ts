/** Processes of the gateway for tests: started on a data folder of their own, killed, and started again. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { closeSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The repository. */
export const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
/** What a run leaves behind: screenshots, logs, figures. Git ignores it. `RESULTS` names another place. */
export const RESULTS = process.env.RESULTS ?? join(ROOT, 'web/e2e/results');
const TURNPIKE = process.env.TURNPIKE ?? join(ROOT, '.venv/bin/turnpike');
const START_MS = 90_000;

/** Run a command of `turnpike` to its end. */
export function turnpike(...words: string[]): string {
  return execFileSync(TURNPIKE, words, { cwd: ROOT, encoding: 'utf8', maxBuffer: 2 ** 26, env: environment() });
}

/** A process of `turnpike` that stays: it can be killed, and started again with the same words. */
export class Role {
  private child: ChildProcess | null = null;

  constructor(
    readonly name: string,
    private readonly words: string[],
    private readonly ready: () => Promise<boolean>,
  ) {}

  /** Start it, and wait until it is ready. */
  async start(): Promise<void> {
    mkdirSync(RESULTS, { recursive: true });
    const log = openSync(join(RESULTS, `${this.name}.log`), 'a');
    this.child = spawn(TURNPIKE, this.words, { cwd: ROOT, stdio: ['ignore', log, log], env: environment() });
    closeSync(log);
    const until = Date.now() + START_MS;
    while (!(await this.ready())) {
      if (this.child.exitCode !== null || Date.now() > until) {
        throw new Error(`${this.name} did not start:\n${this.tail()}`);
      }
      await new Promise((done) => setTimeout(done, 100));
    }
  }

  /** End it: SIGKILL as a crash, SIGTERM in order. */
  async stop(signal: 'SIGKILL' | 'SIGTERM' = 'SIGTERM'): Promise<void> {
    const child = this.child;
    this.child = null;
    if (child === null || child.exitCode !== null) return;
    const ended = new Promise((done) => child.once('exit', done));
    child.kill(signal);
    await ended;
  }

  private tail(): string {
    return readFileSync(join(RESULTS, `${this.name}.log`), 'utf8').slice(-3_000);
  }
}

/** Whether a gateway answers at this URL. */
export async function answers(url: string): Promise<boolean> {
  try {
    return (await fetch(`${url}/console/`, { signal: AbortSignal.timeout(2_000) })).ok;
  } catch {
    return false;
  }
}

/** A TCP port that nobody uses. */
export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  const { port } = server.address() as { port: number };
  await new Promise((done) => server.close(done));
  return port;
}

function environment(): NodeJS.ProcessEnv {
  const own = Object.entries(process.env).filter(([name]) => !name.startsWith('TURNPIKE_'));
  return { ...Object.fromEntries(own), TURNPIKE_LOG_LEVEL: 'warning' };
}
