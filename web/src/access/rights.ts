/** What the signed-in user may do. It decides what is shown; the server decides what is done. */
import { useSuspenseQuery } from '@tanstack/react-query';

import { query, type Schema } from '~/api/client';

export type Me = Schema<'OwnUserObject'>;
export type Permission = Me['rights'][number]['permissions'][number];

/** The query of the user who is signed in. */
export const meOptions = query.queryOptions('get', '/admin/v1/users/me', {}, { staleTime: 60_000 });

/**
 * Whether a user may do this: at the platform without a tenant, anywhere in a tenant by its id, or at one project. A
 * role at the platform reaches every tenant, one at a tenant every project of it.
 */
export function may(me: Me, permission: Permission, tenant?: string, project?: string): boolean {
  return me.rights.some((one) => {
    if (!one.permissions.includes(permission)) return false;
    if (one.tenant === null) return true;
    if (one.tenant !== tenant) return false;
    return project === undefined || one.project === null || one.project === project;
  });
}

/** Whether a user has a role at the platform, and so is an operator. */
export function isOperator(me: Me): boolean {
  return me.rights.some((one) => one.tenant === null);
}

/** The signed-in user, inside the part of the console that needs one. */
export function useMe(): Me {
  return useSuspenseQuery(meOptions).data;
}
