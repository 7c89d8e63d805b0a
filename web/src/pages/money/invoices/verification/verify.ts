/**
 * Verifies an invoice in the browser: its bundle is hashed and computed again, and each line is added up from what the
 * API has below it. Nothing of what the bundle says of itself is believed.
 */
import {
  type Check,
  checkCanonical,
  checkLines,
  checkSame,
  checkStated,
  checkTax,
  checkTotals,
  missing,
  type Stated,
  type Sum,
} from './checks';
import { type InvoiceDocument, parseDocument } from './document';
import { unzip } from './unzip';

const AT_ONCE = 4;

/** A level of a line: what its parent says, and its parts. */
export interface Level<Part extends Sum> {
  total: Sum;
  parts: Part[];
}

export interface LineOf extends Sum {
  n: number;
  opens: boolean;
}

export interface Slice extends Sum {
  start: string;
  requests: number;
  adjustments: number;
}

/** The document before this one in its series; `json` only if it may be seen, else the server's hash of it. */
export interface Predecessor {
  number: string | null;
  sha256: string;
  json: string | null;
}

/** Where the parts of an invoice come from. */
export interface Source {
  stated: Stated & { sha256: string | null };
  bundle: () => Promise<Uint8Array>;
  predecessor: () => Promise<Predecessor | null>;
  lines: () => Promise<LineOf[]>;
  days: (line: number) => Promise<Level<Slice>>;
  hours: (line: number, day: string) => Promise<Level<Slice>>;
  requests: (line: number, day: string, hour: number) => Promise<Level<Sum>>;
  sha256: (bytes: Uint8Array) => Promise<string>;
}

export interface Verification {
  checks: Check[];
  /** The bundle, as it was downloaded. */
  bundle: Uint8Array;
}

/** What is being done, and how much of it is: `made` of `of` parts; none while nobody knows. */
export interface Progress {
  doing: string;
  made: number;
  of: number;
}

interface Manifest {
  files: { name: string; bytes: number; sha256: string }[];
}

/** SHA-256 in hexadecimal. Only where `crypto.subtle` is: on HTTPS and on localhost. */
export async function sha256(bytes: Uint8Array): Promise<string> {
  const digest = await crypto.subtle.digest('SHA-256', bytes.slice());
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/**
 * Verify an invoice. `deep`: down to its requests, else to its days. `done` is told of each check as it is made; a check
 * that fails does not keep the others from being made. `progress` is told what is being done: both parts that take long
 * ask the server, for all forms of the document and for what its lines are made of.
 */
export async function verify(
  source: Source,
  deep: boolean,
  done: (check: Check) => void,
  progress: (progress: Progress) => void = () => undefined,
): Promise<Verification> {
  const checks: Check[] = [];
  const add = (check: Check): void => {
    checks.push(check);
    done(check);
  };
  progress({ doing: 'The server makes all forms of the document', made: 0, of: 0 });
  const bundle = await source.bundle();
  const files = await unzip(bundle);
  const manifest = JSON.parse(text(files, 'manifest.json')) as Manifest;
  add(await checkFiles(source, files, manifest));
  const json = text(files, manifest.files.find((file) => file.name.endsWith('.json'))?.name ?? '');
  const document = parseDocument(json);
  const digest = await source.sha256(new TextEncoder().encode(json));
  add(checkSeal(source.stated, digest));
  add(checkCanonical(json));
  add(await checkPrevious(source, document));
  add(checkLines(document));
  add(checkTax(document));
  add(checkTotals(document));
  add(checkStated(document, source.stated));
  add(await checkUsage(source, document, deep, progress));
  return { checks, bundle };
}

function text(files: Map<string, Uint8Array>, name: string): string {
  const content = files.get(name);
  if (content === undefined) throw new Error(`The bundle has no ${name || 'JSON of the invoice'}.`);
  return new TextDecoder('utf-8', { fatal: true }).decode(content);
}

async function checkFiles(source: Source, files: Map<string, Uint8Array>, manifest: Manifest): Promise<Check> {
  const check: Check = { name: 'Files', about: `${manifest.files.length} files have the SHA-256 of the manifest.` };
  if (files.size !== manifest.files.length + 1) {
    return { ...check, difference: `The bundle has ${files.size} files, the manifest names ${manifest.files.length}.` };
  }
  for (const file of manifest.files) {
    const content = files.get(file.name);
    if (content === undefined) return { ...check, difference: `${file.name} is not there.` };
    const digest = await source.sha256(content);
    if (digest !== file.sha256) return { ...check, difference: `${file.name} is ${digest}, not ${file.sha256}.` };
  }
  return check;
}

function checkSeal({ number, sha256: sealed }: Source['stated'], digest: string): Check {
  if (number === null && sealed === null) return { name: 'Seal', about: 'A draft is not sealed yet.' };
  return checkSame('Seal', 'The SHA-256 of the JSON is the one that was sealed.', sealed ?? '', digest);
}

async function checkPrevious(source: Source, document: InvoiceDocument): Promise<Check> {
  const before = await source.predecessor();
  if (before === null) {
    const about =
      document.number === '' ? 'A draft follows no document yet.' : 'It is the first document of its series.';
    return checkSame('Chain', about, '', document.previous);
  }
  if (before.json === null) {
    const about =
      'It holds the SHA-256 of the document before it, which is another customer’s: the server computed it.';
    return checkSame('Chain', about, before.sha256, document.previous);
  }
  const digest = await source.sha256(new TextEncoder().encode(before.json));
  return checkSame('Chain', `It holds the SHA-256 of ${before.number}, computed here.`, digest, document.previous);
}

/** Each line that opens is the sum of its days; deep: each day that of its hours, each hour that of its requests. */
async function checkUsage(
  source: Source,
  document: InvoiceDocument,
  deep: boolean,
  progress: (progress: Progress) => void,
): Promise<Check> {
  const lines = await source.lines();
  const name = 'Usage';
  if (lines.length !== document.lines.length) {
    const difference = `${lines.length} lines, the document has ${document.lines.length}.`;
    return { name, about: 'Each line is the sum of its usage.', difference };
  }
  let counted = 0;
  const open = lines.filter((line) => line.opens);
  const summed = { doing: deep ? 'Adding up days, hours and requests' : 'Adding up the days of lines', made: 0, of: 0 };
  const grow = (part: 'made' | 'of', by = 1): void => {
    summed[part] += by;
    progress({ ...summed });
  };
  grow('of', open.length);
  const differences = await each(open, async (line) => {
    const said = document.lines[line.n - 1]!;
    const sum = { units: line.units, exact: line.exact };
    if (BigInt(said.units) !== BigInt(line.units)) return `line ${line.n}: ${line.units} units, not ${said.units}`;
    const days = await source.days(line.n);
    const wrong = missing(sum, days.parts);
    if (wrong !== undefined) return `line ${line.n}: its days are ${wrong}`;
    counted += days.parts.reduce((total, day) => total + day.requests + day.adjustments, 0);
    grow('made');
    if (!deep) return undefined;
    grow('of', days.parts.length);
    for (const day of days.parts) {
      const found = await checkDay(source, line.n, day);
      if (found !== undefined) return found;
      grow('made');
    }
    return undefined;
  });
  const depth = deep ? 'days, each day of its hours, each hour of its requests' : 'days';
  const about = `Each of ${open.length} lines is the sum of its ${depth}; ${counted} parts of requests in all.`;
  const first = differences.find((difference) => difference !== undefined);
  return first === undefined ? { name, about } : { name, about, difference: first };
}

async function checkDay(source: Source, line: number, day: Slice): Promise<string | undefined> {
  const date = day.start.slice(0, 10);
  const hours = await source.hours(line, date);
  const wrong = missing(day, hours.parts);
  if (wrong !== undefined) return `line ${line}, ${date}: its hours are ${wrong}`;
  for (const hour of hours.parts) {
    if (hour.requests + hour.adjustments === 0) continue; // an hour of cache storage has no requests
    const requests = await source.requests(line, date, Number(hour.start.slice(11, 13)));
    const off = missing(hour, requests.parts);
    if (off !== undefined) return `line ${line}, ${hour.start}: its requests are ${off}`;
  }
  return undefined;
}

/** The results of a task for each item, a few at once, in their order. */
async function each<Item, Result>(items: readonly Item[], task: (item: Item) => Promise<Result>): Promise<Result[]> {
  const results = new Array<Result>(items.length);
  const queue = items.map((item, index) => ({ item, index }));
  const work = async (): Promise<void> => {
    for (let next = queue.shift(); next !== undefined; next = queue.shift())
      results[next.index] = await task(next.item);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return results;
}
