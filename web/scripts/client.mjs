// Makes src/api/schema.d.ts, the types of what the console calls, of the gateway's OpenAPI document.
//
//   node scripts/client.mjs DOCUMENT
//
// Left out: what nobody reads in a type (examples, headers), and error answers, which src/api/problem.ts types once.
import { readFileSync, writeFileSync } from 'node:fs';

import openapiTS, { astToString } from 'openapi-typescript';

const CALLED = /^\/(admin\/v1|v1\/(models|prices))(\/|$)/;
const document = JSON.parse(readFileSync(process.argv[2], 'utf8'));

document.paths = Object.fromEntries(Object.entries(document.paths).filter(([path]) => CALLED.test(path)));
for (const item of Object.values(document.paths)) {
  for (const operation of Object.values(item)) {
    if (!operation?.responses) continue;
    const succeeding = Object.entries(operation.responses).filter(([status]) => status.startsWith('2'));
    operation.responses = Object.fromEntries(
      succeeding.map(([status, answer]) => [status, { ...answer, headers: {} }]),
    );
  }
}
document.components.schemas = reachable(document);
const strip = (value) => {
  if (Array.isArray(value)) return value.map(strip);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([key]) => key !== 'example' && key !== 'examples')
      .map(([key, inner]) => [key, strip(inner)]),
  );
};

/** The schemas that the kept paths lead to. */
function reachable({ paths, components }) {
  const found = new Map();
  const visit = (value) => {
    if (value === null || typeof value !== 'object') return;
    const name = typeof value.$ref === 'string' ? value.$ref.match(/^#\/components\/schemas\/(.+)$/)?.[1] : undefined;
    if (name !== undefined && !found.has(name)) {
      found.set(name, components.schemas[name]);
      visit(components.schemas[name]);
    }
    for (const inner of Object.values(value)) visit(inner);
  };
  visit(paths);
  return Object.fromEntries([...found].sort(([one], [other]) => (one < other ? -1 : 1)));
}

const types = astToString(await openapiTS(strip(document), { alphabetize: true, defaultNonNullable: false }));
const head = '// Made by `make console` of the gateway’s OpenAPI document. Not edited, not kept in the repository.\n\n';
writeFileSync(new URL('../src/api/schema.d.ts', import.meta.url), head + types);
