/** Trying a model. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { tenantRoute } from '~/app/parents';
import { type Search, text } from '~/app/search';

const playgroundRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'playground',
  validateSearch: (search: Search): { project?: string } => {
    const project = text(search, 'project');
    return project === undefined ? {} : { project };
  },
  component: lazyRouteComponent(() => import('./PlaygroundPage'), 'PlaygroundPage'),
});

export const tenantPlaygroundRoutes = [playgroundRoute] as const;
