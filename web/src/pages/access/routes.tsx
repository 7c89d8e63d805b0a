/** Signing in, one's account; who may do what at a tenant and at the platform. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { platformRoute, rootRoute, signedInRoute, tenantRoute } from '~/app/parents';
import { oneOf, text } from '~/app/search';

import { auditFilters } from './audit/filters';

const signInRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: 'sign-in',
  validateSearch: (search): { next?: string } => ({ next: text(search, 'next') }),
  component: lazyRouteComponent(() => import('./SignInPage'), 'SignInPage'),
});

const linkRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: 'link',
  component: lazyRouteComponent(() => import('./link/LinkPage'), 'LinkPage'),
});

const providerRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: 'provider',
  component: lazyRouteComponent(() => import('./provider/ProviderPage'), 'ProviderPage'),
});

const accountRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: 'account',
  component: lazyRouteComponent(() => import('./account/AccountPage'), 'AccountPage'),
});

// ---------------------------------------------------------------- of a tenant

const keysRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'keys',
  validateSearch: (search): { project?: string; show?: 'active' | 'unused' | 'all'; find?: string } => ({
    project: text(search, 'project'),
    show: oneOf(search, 'show', ['active', 'unused', 'all']),
    find: text(search, 'find'),
  }),
  component: lazyRouteComponent(() => import('./keys/KeysPage'), 'KeysPage'),
});

const keyRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'keys/$key',
  component: lazyRouteComponent(() => import('./keys/KeyPage'), 'KeyPage'),
});

const projectsRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'projects',
  component: lazyRouteComponent(() => import('./projects/ProjectsPage'), 'ProjectsPage'),
});

const projectRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'projects/$project',
  component: lazyRouteComponent(() => import('./projects/ProjectPage'), 'ProjectPage'),
});

const membersRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'members',
  component: lazyRouteComponent(() => import('./members/MembersPage'), 'MembersPage'),
});

const limitsRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'limits',
  validateSearch: (search): { project?: string } => ({ project: text(search, 'project') }),
  component: lazyRouteComponent(() => import('./limits/LimitsPage'), 'LimitsPage'),
});

const budgetsRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'budgets',
  component: lazyRouteComponent(() => import('./budgets/BudgetsPage'), 'BudgetsPage'),
});

const auditRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'audit',
  validateSearch: auditFilters,
  component: lazyRouteComponent(() => import('./audit/AuditPage'), 'AuditPage'),
});

// ---------------------------------------------------------------- of the platform

const approvalsRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'approvals',
  validateSearch: (search): { state?: 'pending' | 'approved' | 'withdrawn'; change?: string } => ({
    state: oneOf(search, 'state', ['pending', 'approved', 'withdrawn']),
    change: text(search, 'change'),
  }),
  component: lazyRouteComponent(() => import('./approvals/ApprovalsPage'), 'ApprovalsPage'),
});

const tenantsRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'tenants',
  component: lazyRouteComponent(() => import('./platform/TenantsPage'), 'TenantsPage'),
});

const usersRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'users',
  validateSearch: (search): { find?: string } => ({ find: text(search, 'find') }),
  component: lazyRouteComponent(() => import('./platform/UsersPage'), 'UsersPage'),
});

const userRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'users/$user',
  component: lazyRouteComponent(() => import('./platform/UserPage'), 'UserPage'),
});

const platformMembersRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'members',
  component: lazyRouteComponent(() => import('./platform/PlatformMembersPage'), 'PlatformMembersPage'),
});

const operatorKeysRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'operator-keys',
  component: lazyRouteComponent(() => import('./platform/OperatorKeysPage'), 'OperatorKeysPage'),
});

const operatorKeyRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'operator-keys/$key',
  component: lazyRouteComponent(() => import('./platform/OperatorKeyPage'), 'OperatorKeyPage'),
});

const suspensionsRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'suspensions',
  component: lazyRouteComponent(() => import('./platform/SuspensionsPage'), 'SuspensionsPage'),
});

const settingsRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'settings',
  component: lazyRouteComponent(() => import('./platform/SettingsPage'), 'SettingsPage'),
});

const platformAuditRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'audit',
  validateSearch: auditFilters,
  component: lazyRouteComponent(() => import('./audit/AuditPage'), 'PlatformAuditPage'),
});

export const signInRoutes = [signInRoute, linkRoute, providerRoute] as const;
export const tenantAccessRoutes = [
  keysRoute,
  keyRoute,
  projectsRoute,
  projectRoute,
  membersRoute,
  limitsRoute,
  budgetsRoute,
  auditRoute,
] as const;
export const accountRoutes = [accountRoute] as const;
export const platformAccessRoutes = [
  approvalsRoute,
  tenantsRoute,
  usersRoute,
  userRoute,
  platformMembersRoute,
  operatorKeysRoute,
  operatorKeyRoute,
  suspensionsRoute,
  settingsRoute,
  platformAuditRoute,
] as const;
