/** What people pick of an adapter: the two files that PEFT saves, their folder, or a ZIP archive with them. */
import { Problem } from '~/api/problem';

export const CONFIG = 'adapter_config.json';
export const TENSORS = 'adapter_model.safetensors';

export interface AdapterFiles {
  config: string;
  tensors: Blob;
}

const END = 0x06054b50;
const ENTRY = 0x02014b50;
const END_BYTES = 22;
const ENTRY_BYTES = 46;
const HEAD_BYTES = 30;
const MOST_COMMENT = 65_535;
const DEFLATED = 8;

/** The two files among those that were picked. Throws a Problem that names the one which is missing. */
export async function adapterFiles(picked: File[]): Promise<AdapterFiles> {
  const [archive] = picked.filter((file) => file.name.toLowerCase().endsWith('.zip'));
  const find = async (name: string): Promise<Blob> => {
    const plain = picked.find((file) => file.name === name);
    const found = plain ?? (archive === undefined ? undefined : await fromZip(archive, name));
    if (found === undefined) throw Problem.at('file', missing(name, picked));
    return found;
  };
  const [config, tensors] = [await find(CONFIG), await find(TENSORS)];
  return { config: await config.text(), tensors };
}

function missing(name: string, picked: File[]): string {
  if (picked.length === 0) return `Choose ${CONFIG} and ${TENSORS}, their folder, or a ZIP archive with both.`;
  if (name === TENSORS && picked.some((file) => /\.(bin|pt|pth)$/.test(file.name)))
    return `${TENSORS} is missing: save the adapter as safetensors; pickles are not read.`;
  return `${name} is missing among what you chose.`;
}

/** A file of a ZIP archive (APPNOTE 6.3.10) in whatever folder of it, stored or deflated; undefined if it has none. */
export async function fromZip(archive: Blob, name: string): Promise<Blob | undefined> {
  const tailAt = Math.max(0, archive.size - END_BYTES - MOST_COMMENT);
  const tail = new DataView(await archive.slice(tailAt).arrayBuffer());
  let end = tail.byteLength - END_BYTES;
  while (end >= 0 && tail.getUint32(end, true) !== END) end -= 1;
  if (end < 0) throw Problem.at('file', 'This is no ZIP archive.');
  const [size, at] = [tail.getUint32(end + 12, true), tail.getUint32(end + 16, true)];
  const list = new DataView(await archive.slice(at, at + size).arrayBuffer());
  for (let place = 0; place + ENTRY_BYTES <= list.byteLength && list.getUint32(place, true) === ENTRY;) {
    const [named, extra, comment] = [28, 30, 32].map((offset) => list.getUint16(place + offset, true)) as [
      number,
      number,
      number,
    ];
    const path = new TextDecoder().decode(new Uint8Array(list.buffer, place + ENTRY_BYTES, named));
    if (path === name || path.endsWith(`/${name}`)) {
      const [packed, head] = [list.getUint32(place + 20, true), list.getUint32(place + 42, true)];
      const local = new DataView(await archive.slice(head, head + HEAD_BYTES).arrayBuffer());
      const begin = head + HEAD_BYTES + local.getUint16(26, true) + local.getUint16(28, true);
      const content = archive.slice(begin, begin + packed);
      if (list.getUint16(place + 10, true) !== DEFLATED) return content;
      return new Response(content.stream().pipeThrough(new DecompressionStream('deflate-raw'))).blob();
    }
    place += ENTRY_BYTES + named + extra + comment;
  }
  return undefined;
}
