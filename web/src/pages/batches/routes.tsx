/** Batches of a tenant, and the files that its projects keep. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { tenantRoute } from '~/app/parents';
import { oneOf, text } from '~/app/search';

import { type BatchFilters, type FileFilters, PURPOSES, STATES } from './filters';

const batchesRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'batches',
  validateSearch: (search): BatchFilters => ({
    project: text(search, 'project'),
    state: oneOf(search, 'state', STATES),
  }),
  component: lazyRouteComponent(() => import('./BatchesPage'), 'BatchesPage'),
});

const batchRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'batches/$batch',
  component: lazyRouteComponent(() => import('./BatchPage'), 'BatchPage'),
});

const filesRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'files',
  validateSearch: (search): FileFilters => ({
    project: text(search, 'project'),
    purpose: oneOf(search, 'purpose', PURPOSES),
  }),
  component: lazyRouteComponent(() => import('./FilesPage'), 'FilesPage'),
});

export const tenantBatchRoutes = [batchesRoute, batchRoute, filesRoute] as const;
