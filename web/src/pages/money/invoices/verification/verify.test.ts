import { createHash } from 'node:crypto';
import { deflateRawSync } from 'node:zlib';

import { describe, expect, it } from 'vitest';

import { canonical } from './document';
import { unzip } from './unzip';
import { type Source, verify } from './verify';

const hash = (data: Uint8Array | string): string => createHash('sha256').update(data).digest('hex');

/** A ZIP archive as the server writes it: deflated files without extras. CRCs are not looked at. */
function zip(files: Record<string, string>): Uint8Array {
  const parts: Buffer[] = [];
  const entries: Buffer[] = [];
  let at = 0;
  for (const [name, text] of Object.entries(files)) {
    const [data, packed] = [Buffer.from(text), deflateRawSync(Buffer.from(text))];
    const local = Buffer.alloc(30);
    local.writeUInt32LE(0x04034b50, 0);
    local.writeUInt16LE(name.length, 26);
    const entry = Buffer.alloc(46);
    entry.writeUInt32LE(0x02014b50, 0);
    entry.writeUInt16LE(8, 10);
    entry.writeUInt32LE(packed.length, 20);
    entry.writeUInt32LE(data.length, 24);
    entry.writeUInt16LE(name.length, 28);
    entry.writeUInt32LE(at, 42);
    parts.push(local, Buffer.from(name), packed);
    entries.push(entry, Buffer.from(name));
    at += 30 + name.length + packed.length;
  }
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(Object.keys(files).length, 10);
  end.writeUInt32LE(at, 16);
  return new Uint8Array(Buffer.concat([...parts, ...entries, end]));
}

const before = canonical({ number: 'INV-2026-000001' });
const line = {
  ...{ kind: 'usage', text: 'output', price: 500_000, units: '4', unit: 'tokens', exact: '2000000', net: 0 },
  ...{ category: 'O', rate: 0, of: 0 },
};
const json = canonical({
  ...{ kind: 'invoice', number: 'INV-2026-000002', period: '2026-10', currency: 'USD', lines: [line] },
  ...{ taxes: [{ category: 'O', rate: 0, net: 0, tax: 0 }], net: 0, tax: 0, gross: 0, prepaid: 0, payable: 0 },
  ...{ carry_in: '0', carry_out: '2000000', previous: hash(before) },
});

function bundle(contents: Record<string, string>, manifest: Record<string, string> = contents): Uint8Array {
  const files = Object.entries(manifest).map(([name, text]) => ({ name, bytes: text.length, sha256: hash(text) }));
  return zip({ ...contents, 'manifest.json': JSON.stringify({ sha256: hash(json), files }) });
}

const two = { units: 2, exact: '0.000001' };
const day = { start: '2026-10-01T00:00:00Z', requests: 1, adjustments: 0, ...two };

function source(changes: Partial<Source> = {}): Source {
  const amounts = { net: '0.00', tax: '0.00', gross: '0.00', prepaid: '0.00', payable: '0.00' };
  return {
    stated: { number: 'INV-2026-000002', sha256: hash(json), ...amounts },
    bundle: async () => bundle({ 'INV.json': json, 'INV.pdf': '%PDF-' }),
    predecessor: async () => ({ number: 'INV-2026-000001', sha256: hash(before), json: before }),
    lines: async () => [{ n: 1, opens: true, units: 4, exact: '0.000002' }],
    days: async () => ({
      total: { units: 4, exact: '0.000002' },
      parts: [day, { ...day, start: '2026-10-31T00:00:00Z' }],
    }),
    hours: async (_, date) => ({ total: two, parts: [{ ...day, start: `${date}T13:00:00Z` }] }),
    requests: async () => ({ total: two, parts: [two] }),
    sha256: async (bytes) => hash(bytes),
    ...changes,
  };
}

async function differences(changes: Partial<Source>, deep = false): Promise<string[]> {
  const { checks } = await verify(source(changes), deep, () => undefined);
  return checks.filter((check) => check.difference !== undefined).map((check) => `${check.name}: ${check.difference}`);
}

describe('verify', () => {
  it('finds nothing wrong with a true invoice, down to its requests', async () => {
    const told: string[] = [];
    const { checks, bundle: saved } = await verify(source(), true, (check) => told.push(check.name));
    expect(checks.map((check) => check.difference)).toEqual(checks.map(() => undefined));
    expect(told).toEqual(['Files', 'Seal', 'Form', 'Chain', 'Lines', 'Tax', 'Totals', 'Page', 'Usage']);
    expect((await unzip(saved)).get('INV.pdf')).toEqual(new TextEncoder().encode('%PDF-'));
  });

  it('finds a file that is not what the manifest says', async () => {
    const wrong = async (): Promise<Uint8Array> =>
      bundle({ 'INV.json': json, 'INV.pdf': '%PDF-x' }, { 'INV.json': json, 'INV.pdf': '%PDF-' });
    expect((await differences({ bundle: wrong }))[0]).toMatch(/^Files: INV\.pdf is /);
  });

  it('finds a document that was altered with its whole bundle', async () => {
    const altered = json.replace('"units":"4"', '"units":"5"');
    const found = await differences({ bundle: async () => bundle({ 'INV.json': altered }) });
    expect(found.map((difference) => difference.split(':')[0])).toEqual(['Seal', 'Lines', 'Usage']);
  });

  it('does not ask a draft for its seal, but a document without one', async () => {
    const { stated } = source();
    expect(await differences({ stated: { ...stated, sha256: null } })).toHaveLength(1);
    const draft = json.replace('"number":"INV-2026-000002"', '"number":""').replace(hash(before), '');
    const changes = { bundle: async () => bundle({ 'draft.json': draft }), predecessor: async () => null };
    expect(await differences({ ...changes, stated: { ...stated, number: null, sha256: null } })).toEqual([]);
  });

  it('finds a chain that leads elsewhere, seen or not', async () => {
    const other = canonical({ number: 'INV-2026-000001', net: 1 });
    const seen = { number: 'INV-2026-000001', sha256: hash(before), json: other };
    expect((await differences({ predecessor: async () => seen }))[0]).toMatch(/^Chain/);
    const unseen = { number: null, sha256: hash(other), json: null };
    expect((await differences({ predecessor: async () => unseen }))[0]).toMatch(/^Chain/);
    expect((await differences({ predecessor: async () => null }))[0]).toMatch(/^Chain/);
  });

  it('finds a line whose days are not its sum', async () => {
    const days = async () => ({ total: two, parts: [day] });
    expect(await differences({ days })).toEqual(['Usage: line 1: its days are 2 units, not 4']);
  });

  it('finds an hour whose requests are not its sum, if it looks so deep', async () => {
    const requests = async () => ({ total: two, parts: [{ units: 2, exact: '0.000001000001' }] });
    expect(await differences({ requests })).toEqual([]);
    expect((await differences({ requests }, true))[0]).toMatch(/^Usage: line 1, 2026-10-01T13:00:00Z: its requests/);
  });

  it('refuses what is no archive, or one that ends too early', async () => {
    await expect(differences({ bundle: async () => new Uint8Array(40) })).rejects.toThrow('no ZIP archive');
    const whole = bundle({ 'INV.json': json });
    const cut = new Uint8Array([...whole.slice(0, 60), ...whole.slice(whole.length - 22)]);
    await expect(differences({ bundle: async () => cut })).rejects.toThrow(/early|damaged/);
  });
});
