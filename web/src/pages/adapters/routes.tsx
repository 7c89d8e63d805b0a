/** The adapters of a tenant's projects. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { tenantRoute } from '~/app/parents';
import { text } from '~/app/search';

const adaptersRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'adapters',
  validateSearch: (search): { project?: string } => ({ project: text(search, 'project') }),
  component: lazyRouteComponent(() => import('./AdaptersPage'), 'AdaptersPage'),
});

export const tenantAdapterRoutes = [adaptersRoute] as const;
