/** Overview, usage and cache of a tenant, and the overview of all tenants. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { platformRoute, tenantRoute } from '~/app/parents';
import { type UsageFilters, usageFilters } from '~/app/search';

import { PLATFORM_GROUPS, type UsageSearch, usageSearch } from './search';

const overviewRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'overview',
  component: lazyRouteComponent(() => import('../overview/OverviewPage'), 'OverviewPage'),
});

const usageRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'usage',
  validateSearch: (search): UsageSearch => usageSearch(search),
  component: lazyRouteComponent(() => import('./UsagePage'), 'UsagePage'),
});

const cacheRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'cache',
  validateSearch: (search): UsageFilters => usageFilters(search),
  component: lazyRouteComponent(() => import('../cache/CachePage'), 'CachePage'),
});

const allRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'overview',
  component: lazyRouteComponent(() => import('../overview/AllTenantsPage'), 'AllTenantsPage'),
});

const allUsageRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'usage',
  validateSearch: (search): UsageSearch => usageSearch(search, PLATFORM_GROUPS),
  component: lazyRouteComponent(() => import('./AllUsagePage'), 'AllUsagePage'),
});

export const tenantUsageRoutes = [overviewRoute, usageRoute, cacheRoute] as const;
export const platformUsageRoutes = [allRoute, allUsageRoute] as const;
