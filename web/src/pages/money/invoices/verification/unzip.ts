/** Reads a ZIP archive: as much of the format (PKWARE's APPNOTE 6.3) as an invoice's bundle needs. */

const END = 0x06054b50;
const ENTRY = 0x02014b50;
const LOCAL = 0x04034b50;
const STORED = 0;
const DEFLATED = 8;
const MOST_FILES = 64;
const MOST_BYTES = 256 * 1024 * 1024;

/** An archive that cannot be read. */
export class BadArchive extends Error {
  override name = 'BadArchive';
}

/** The files of an archive by name. Throws BadArchive. */
export async function unzip(archive: Uint8Array): Promise<Map<string, Uint8Array>> {
  const view = new DataView(archive.buffer, archive.byteOffset, archive.byteLength);
  const files = new Map<string, Uint8Array>();
  try {
    const end = endOfDirectory(view);
    const count = view.getUint16(end + 10, true);
    if (count > MOST_FILES) throw new BadArchive(`It has ${count} files.`);
    let at = view.getUint32(end + 16, true);
    for (let n = 0; n < count; n++) {
      if (view.getUint32(at, true) !== ENTRY) throw new BadArchive('Its directory is damaged.');
      const nameLength = view.getUint16(at + 28, true);
      const name = new TextDecoder().decode(archive.subarray(at + 46, at + 46 + nameLength));
      files.set(name, await content(archive, view, at, name));
      at += 46 + nameLength + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
    }
  } catch (error) {
    if (error instanceof BadArchive) throw error;
    throw new BadArchive('It ends too early.');
  }
  return files;
}

function endOfDirectory(view: DataView): number {
  for (let at = view.byteLength - 22; at >= 0; at--) if (view.getUint32(at, true) === END) return at;
  throw new BadArchive('It is no ZIP archive.');
}

async function content(archive: Uint8Array, view: DataView, entry: number, name: string): Promise<Uint8Array> {
  const method = view.getUint16(entry + 10, true);
  const packed = view.getUint32(entry + 20, true);
  const size = view.getUint32(entry + 24, true);
  const local = view.getUint32(entry + 42, true);
  if (view.getUint32(local, true) !== LOCAL) throw new BadArchive(`${name} is damaged.`);
  if (size > MOST_BYTES) throw new BadArchive(`${name} has ${size} bytes.`);
  const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
  const bytes = archive.subarray(start, start + packed);
  if (bytes.length !== packed) throw new BadArchive(`${name} ends too early.`);
  const unpacked = method === DEFLATED ? await inflate(bytes, name) : bytes;
  if (method !== DEFLATED && method !== STORED)
    throw new BadArchive(`${name} is packed by the unknown method ${method}.`);
  if (unpacked.length !== size) throw new BadArchive(`${name} has ${unpacked.length} bytes, not ${size}.`);
  return unpacked;
}

async function inflate(bytes: Uint8Array, name: string): Promise<Uint8Array> {
  try {
    const stream = new Blob([bytes.slice()]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new BadArchive(`${name} cannot be unpacked.`);
  }
}
