/** Overview, usage and cache of a tenant, and the overview of all tenants. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { platformRoute, tenantRoute } from '~/app/parents';
import { type UsageFilters, usageFilters } from '~/app/search';

import { allTenantsOptions, overviewOptions } from '../overview/queries';
import { PLATFORM_GROUPS, type UsageSearch, usageSearch } from './search';

/** The page's code and its data come at once: each would otherwise wait for the other. */
const overviewRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'overview',
  loader: ({ context, params }) => void context.queries.prefetchQuery(overviewOptions(params.tenant)),
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
  loader: ({ context }) => void context.queries.prefetchQuery(allTenantsOptions),
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
