/** All routes. Each area of pages has its own list; what is behind a page is loaded when it is opened. */
import { QueryClientProvider } from '@tanstack/react-query';
import { createRouter } from '@tanstack/react-router';

import { ProblemPage } from '~/components/ProblemPage';
import { accountRoutes, platformAccessRoutes, signInRoutes, tenantAccessRoutes } from '~/pages/access/routes';
import { tenantAdapterRoutes } from '~/pages/adapters/routes';
import { tenantBatchRoutes } from '~/pages/batches/routes';
import { platformFleetRoutes } from '~/pages/fleet/routes';
import { homeRoute } from '~/pages/home/routes';
import { platformMoneyRoutes, tenantMoneyRoutes } from '~/pages/money/routes';
import { tenantPlaygroundRoutes } from '~/pages/playground/routes';
import { tenantRequestRoutes } from '~/pages/requests/routes';
import { platformUsageRoutes, tenantUsageRoutes } from '~/pages/usage/routes';

import { platformRoute, rootRoute, signedInRoute, tenantRoute, unknownRoute } from './parents';
import { makeQueryClient } from './query_client';

const routeTree = rootRoute.addChildren([
  ...signInRoutes,
  signedInRoute.addChildren([
    homeRoute,
    unknownRoute,
    ...accountRoutes,
    platformRoute.addChildren([
      ...platformUsageRoutes,
      ...platformFleetRoutes,
      ...platformMoneyRoutes,
      ...platformAccessRoutes,
    ]),
    tenantRoute.addChildren([
      ...tenantUsageRoutes,
      ...tenantRequestRoutes,
      ...tenantBatchRoutes,
      ...tenantAdapterRoutes,
      ...tenantPlaygroundRoutes,
      ...tenantAccessRoutes,
      ...tenantMoneyRoutes,
    ]),
  ]),
]);

export const queries = makeQueryClient(() => {
  const { pathname, href } = router.state.location;
  if (pathname !== '/sign-in') void router.navigate({ to: '/sign-in', search: { next: href } });
});

export const router = createRouter({
  routeTree,
  basepath: '/console',
  context: { queries },
  defaultPreload: false,
  scrollRestoration: true,
  defaultErrorComponent: ({ error, reset }) => <ProblemPage error={error} retry={reset} />,
  Wrap: ({ children }) => <QueryClientProvider client={queries}>{children}</QueryClientProvider>,
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}
