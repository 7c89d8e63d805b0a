/** What a form about a key has, and what is sent of it. Nothing chosen means no limit. */
import type { Schema } from '~/api/client';

import type { Role } from '../roles';

export type Key = Schema<'KeyObject'>;

export interface KeyFields {
  name: string;
  /** The project's name; empty for a key that administers the tenant. */
  project: string;
  role: Role;
  scopes: string[];
  networks: string[];
  models: string[];
  lanes: string[];
  /** The end as a field of a form has it, in UTC and without its zone; empty: none. */
  expires: string;
}

export const LANES = ['interactive', 'standard', 'batch'];

/** The fields of a new key of a project. */
export function emptyFields(project: string): KeyFields {
  return { name: '', project, role: 'developer', scopes: [], networks: [], models: [], lanes: [], expires: '' };
}

/** The fields of a key as it is. */
export function fieldsOf(key: Key): KeyFields {
  return {
    name: key.name,
    project: key.project_id ?? '',
    role: key.role ?? 'developer',
    scopes: key.scopes ?? [],
    networks: key.networks ?? [],
    models: key.models ?? [],
    lanes: key.lanes ?? [],
    expires: key.expires_at === null ? '' : new Date(key.expires_at).toISOString().slice(0, 16),
  };
}

/** The body that creates a key. */
export function newKey(fields: KeyFields): Schema<'NewKey'> {
  const shared = {
    name: fields.name,
    scopes: limit(fields.scopes),
    networks: limit(fields.networks),
    expires_at: instant(fields.expires),
    dry_run: false,
  };
  if (fields.project === '') return { ...shared, project: null, role: fields.role, models: null, lanes: null };
  return { ...shared, project: fields.project, role: null, models: limit(fields.models), lanes: limit(fields.lanes) };
}

/** The body that changes a key: what differs alone, so that two people who change different things both succeed. */
export function keyPatch(before: KeyFields, after: KeyFields): Omit<Schema<'KeyPatch'>, 'reason'> {
  const patch: Omit<Schema<'KeyPatch'>, 'reason'> = {};
  if (after.name !== before.name) patch.name = after.name;
  if (after.role !== before.role) patch.role = after.role;
  for (const name of ['scopes', 'networks', 'models', 'lanes'] as const) {
    if (after[name].join('\n') !== before[name].join('\n')) patch[name] = limit(after[name]);
  }
  if (after.expires !== before.expires) patch.expires_at = instant(after.expires);
  return patch;
}

const UNUSED_MS = 30 * 24 * 3_600_000;

/** Whether a key that could be used was not, for 30 days: made so long ago, and last used before then or never. */
export function isUnused(key: Key, now: number): boolean {
  if (key.state !== 'active') return false;
  return now - new Date(key.last_used_at ?? key.created_at).getTime() > UNUSED_MS;
}

/** What is left of a time, to the second: `23 h 59 min 07 s`. */
export function displayLeft(milliseconds: number): string {
  const seconds = Math.max(0, Math.floor(milliseconds / 1_000));
  const [hours, minutes] = [Math.floor(seconds / 3_600), Math.floor(seconds / 60) % 60];
  const two = (count: number): string => String(count).padStart(2, '0');
  return `${hours > 0 ? `${hours} h ` : ''}${two(minutes)} min ${two(seconds % 60)} s`;
}

/** The name of a key for people: its own, else its public id. */
export function nameOf(key: Key): string {
  return key.name || key.id;
}

function limit(values: string[]): string[] | null {
  return values.length === 0 ? null : values;
}

function instant(local: string): string | null {
  return local === '' ? null : `${local}:00Z`;
}
