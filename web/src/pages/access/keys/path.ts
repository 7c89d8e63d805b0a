/** Where keys are: those of a tenant, and those of operators, whose routes have the same shapes. */

export const KEYS_PATH = '/admin/v1/tenants/{tenant}/keys';
export const KEY_PATH = '/admin/v1/tenants/{tenant}/keys/{key}';
export const OPERATOR_KEYS_PATH = '/admin/v1/operator-keys';

/** The path of a key, typed as that of a tenant's. Without a tenant it is an operator's key. */
export function keyPath(tenant: string | undefined): typeof KEY_PATH {
  return tenant === undefined ? (`${OPERATOR_KEYS_PATH}/{key}` as typeof KEY_PATH) : KEY_PATH;
}

/** What a key's path takes. */
export function keyParams(tenant: string | undefined, key: string): { path: { tenant: string; key: string } } {
  return { path: { tenant: tenant ?? '', key } };
}
