import { deflateRawSync } from 'node:zlib';

import { expect, test } from 'vitest';

import { adapterFiles, CONFIG, fromZip, TENSORS } from './files';

/** A ZIP archive of these files, stored or deflated; nothing reads its checksums. */
function zip(files: Record<string, string>, deflated: boolean): File {
  const parts: Uint8Array[] = [];
  const entries: Uint8Array[] = [];
  let at = 0;
  for (const [name, text] of Object.entries(files)) {
    const content = deflated ? deflateRawSync(Buffer.from(text)) : Buffer.from(text);
    const head = Buffer.alloc(30 + name.length + 3);
    head.writeUInt32LE(0x04034b50, 0);
    head.writeUInt16LE(name.length, 26);
    head.writeUInt16LE(3, 28);
    head.write(name, 30);
    const entry = Buffer.alloc(46 + name.length);
    entry.writeUInt32LE(0x02014b50, 0);
    entry.writeUInt16LE(deflated ? 8 : 0, 10);
    entry.writeUInt32LE(content.length, 20);
    entry.writeUInt16LE(name.length, 28);
    entry.writeUInt32LE(at, 42);
    entry.write(name, 46);
    parts.push(head, content);
    entries.push(entry);
    at += head.length + content.length;
  }
  const list = Buffer.concat(entries);
  const end = Buffer.alloc(22 + 5);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt32LE(list.length, 12);
  end.writeUInt32LE(at, 16);
  return new File([Buffer.concat([...parts, list, end])], 'adapter.zip');
}

const FILES = { [`out/${CONFIG}`]: '{"r": 8}', [`out/${TENSORS}`]: 'tensors '.repeat(50), 'out/README.md': 'x' };

test.each([true, false])('both files are found in an archive (deflated: %s)', async (deflated) => {
  const { config, tensors } = await adapterFiles([zip(FILES, deflated)]);
  expect(config).toBe('{"r": 8}');
  expect(await tensors.text()).toBe('tensors '.repeat(50));
  expect(await fromZip(zip(FILES, deflated), 'other')).toBeUndefined();
});

test('both files are found among others', async () => {
  const picked = [new File(['{}'], CONFIG), new File(['t'], TENSORS), new File(['x'], 'tokenizer.json')];
  expect((await adapterFiles(picked)).config).toBe('{}');
});

test('what is missing is named', async () => {
  await expect(adapterFiles([])).rejects.toThrow('Choose adapter_config.json');
  await expect(adapterFiles([new File(['{}'], CONFIG)])).rejects.toThrow(`${TENSORS} is missing`);
  const pickle = [new File(['{}'], CONFIG), new File(['x'], 'adapter_model.bin')];
  await expect(adapterFiles(pickle)).rejects.toThrow('pickles are not read');
  await expect(adapterFiles([new File(['no archive'], 'a.zip')])).rejects.toThrow('no ZIP archive');
});
