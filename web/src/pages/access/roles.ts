/** The roles, and who may give them. */
import { may, type Me, type Permission } from '~/access/rights';
import type { Schema } from '~/api/client';

export type Role = Schema<'MembershipObject'>['role'];

/** What each role is for, in the order of what it may do. */
export const ROLES: Record<Role, string> = {
  owner: 'Everything, owners included',
  admin: 'Everything but money, owners and finance',
  finance: 'Money, budgets and exports',
  developer: 'Keys, inference and usage',
  viewer: 'Looks at everything but content',
};

/** The roles as choices of a form, each with what it is for. */
export const ROLE_CHOICES = (Object.keys(ROLES) as Role[]).map((role) => ({
  value: role,
  label: `${role} – ${ROLES[role]}`,
}));

/** What admins do not give: owners and finance may do what admins may not. */
const FOR_OWNERS_TO_GIVE: readonly Role[] = ['owner', 'finance'];

/** The roles that a user may give where it may change members: none that allows more than its own. */
export function rolesToGive(me: Me, tenant?: string): typeof ROLE_CHOICES {
  const owner = me.memberships.some((one) => one.role === 'owner' && (one.tenant === null || one.tenant === tenant));
  return ROLE_CHOICES.filter(({ value }) => owner || !FOR_OWNERS_TO_GIVE.includes(value));
}

/** Permissions that keys of a project may have at most (`PROJECT_KEY_PERMISSIONS` of the gateway). */
const OF_PROJECT_KEYS: readonly Permission[] = [
  'inference',
  'models.read',
  'usage.read',
  'requests.read',
  'caches.read',
  'caches.write',
  'prices.read',
];

/**
 * The scopes that a user can give a new key: single permissions, those of a project's key or all at the tenant, and for
 * the latter groups of them. A key never gives more than its maker has.
 */
export function scopesToGive(me: Me, tenant: string | undefined, project: boolean): string[] {
  const own = new Set(me.rights.flatMap((one) => one.permissions).filter((one) => may(me, one, tenant)));
  if (project) return OF_PROJECT_KEYS.filter((one) => own.has(one));
  const groups = [...new Set([...own].filter((one) => one.includes('.')).map((one) => one.split('.')[0]!))].sort();
  return ['read', ...groups, ...[...own].sort()];
}
