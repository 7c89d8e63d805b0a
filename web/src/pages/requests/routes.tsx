/** Requests of a tenant, each with its waterfall. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { tenantRoute } from '~/app/parents';

import { requestFilters, requestsSearch } from './search';

const requestsRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'requests',
  validateSearch: requestsSearch,
  component: lazyRouteComponent(() => import('./RequestsPage'), 'RequestsPage'),
});

const requestRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'requests/$request',
  validateSearch: requestFilters,
  component: lazyRouteComponent(() => import('./RequestPage'), 'RequestPage'),
});

export const tenantRequestRoutes = [requestsRoute, requestRoute] as const;
