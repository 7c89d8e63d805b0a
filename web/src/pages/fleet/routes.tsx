/** The replicas. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { platformRoute } from '~/app/parents';

const fleetRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'fleet',
  component: lazyRouteComponent(() => import('./FleetPage'), 'FleetPage'),
});

export const platformFleetRoutes = [fleetRoute] as const;
