/** Rate limits of a project or key: their fields, and whose they are. */
import { api, type Schema } from '~/api/client';

export type Limits = Schema<'LimitsObject'>;

/** Whose limits: a project by its id, or a key by its public id. */
export interface Subject {
  scope: 'project' | 'key';
  id: string;
}

export const FIELDS = [
  ['requests_per_minute', 'Requests per minute'],
  ['input_tokens_per_minute', 'Input tokens per minute'],
  ['output_tokens_per_minute', 'Output tokens per minute'],
  ['concurrent_requests', 'Requests at once'],
] as const;
export type Field = (typeof FIELDS)[number][0];

/** What a form has of limits: counts as they were typed; empty is no limit. */
export type Typed = Record<Field, string>;

/** The limits as a form has them. */
export function typedOf(limits: Limits | null): Typed {
  const typed = {} as Typed;
  for (const [name] of FIELDS) typed[name] = limits?.[name] == null ? '' : String(limits[name]);
  return typed;
}

/** The body that sets all limits of a subject. What is no count is sent as it is, for the server to say so. */
export function newLimits(typed: Typed, reason: string): Schema<'NewLimits'> {
  const body = { reason } as Schema<'NewLimits'>;
  for (const [name] of FIELDS) {
    const text = typed[name].replace(/[\s\u202f]/g, '');
    body[name] = text === '' ? null : /^-?\d{1,15}$/.test(text) ? Number(text) : (text as never);
  }
  return body;
}

/** Every query of limits begins with this key. */
export const LIMITS_KEY = 'limits';

/** The limits of a project, or of a key of it; null where none are set. */
export async function readLimits({ scope, id }: Subject, project: string): Promise<Limits | null> {
  const { data } = await api.GET('/admin/v1/limits', { params: { query: { project_id: project } } });
  return data!.data.find((one) => one.scope === scope && (scope === 'project' || one.key === id)) ?? null;
}

/** Set all limits of a subject, or with null remove them. */
export async function writeLimits({ scope, id }: Subject, body: Schema<'NewLimits'> | null): Promise<void> {
  if (scope === 'project') {
    const params = { path: { project: id } };
    if (body === null) await api.DELETE('/admin/v1/limits/projects/{project}', { params });
    else await api.PUT('/admin/v1/limits/projects/{project}', { params, body });
  } else {
    const params = { path: { key: id } };
    if (body === null) await api.DELETE('/admin/v1/limits/keys/{key}', { params });
    else await api.PUT('/admin/v1/limits/keys/{key}', { params, body });
  }
}
