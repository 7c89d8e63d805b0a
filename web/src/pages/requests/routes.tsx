/** Requests of a tenant, each with its waterfall. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { tenantRoute } from '~/app/parents';
import { text } from '~/app/search';

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

const refusedRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'refused',
  validateSearch: (search): { project?: string; key?: string } => ({
    project: text(search, 'project'),
    key: text(search, 'key'),
  }),
  component: lazyRouteComponent(() => import('./RefusedPage'), 'RefusedPage'),
});

export const tenantRequestRoutes = [refusedRoute, requestsRoute, requestRoute] as const;
