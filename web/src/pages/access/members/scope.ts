/** Where roles are held: the platform, a tenant or a project. The routes below each have the same shapes. */
import { may, type Me, type Permission } from '~/access/rights';

export interface RoleScope {
  /** The tenant's and the project's name in paths; neither: the platform. */
  tenant?: string;
  project?: string;
  /** Their ids, by which rights are looked up. */
  tenantId?: string;
  projectId?: string;
}

/**
 * The path of the members of a scope, typed as that of the platform's. The names come from paths of this console, so
 * they are escaped here.
 */
export function membersPath({ tenant, project }: RoleScope): '/admin/v1/members' {
  return `${base(tenant, project)}/members` as '/admin/v1/members';
}

/** The path of the invitations to a scope, typed as that of the platform's. */
export function invitationsPath({ tenant, project }: RoleScope): '/admin/v1/invitations' {
  return `${base(tenant, project)}/invitations` as '/admin/v1/invitations';
}

/** Whether the user has a permission at this scope. */
export function mayAt(me: Me, permission: Permission, scope: RoleScope): boolean {
  if (scope.project !== undefined) return may(me, permission, scope.tenantId, scope.projectId);
  // A role in one project of a tenant gives nothing at the tenant itself.
  const wide = { ...me, rights: me.rights.filter((one) => one.project === null) };
  return may(wide, permission, scope.tenantId);
}

/** What a scope is called in a sentence. */
export function nameOfScope({ tenant, project }: RoleScope): string {
  if (tenant === undefined) return 'the platform';
  return project === undefined ? `the tenant ${tenant}` : `the project ${project}`;
}

function base(tenant: string | undefined, project: string | undefined): string {
  if (tenant === undefined) return '/admin/v1';
  const at = `/admin/v1/tenants/${encodeURIComponent(tenant)}`;
  return project === undefined ? at : `${at}/projects/${encodeURIComponent(project)}`;
}
