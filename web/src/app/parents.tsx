/** The routes that pages hang below: what needs a session, what belongs to a tenant. */
import type { QueryClient } from '@tanstack/react-query';
import { createRootRouteWithContext, createRoute, Outlet, redirect } from '@tanstack/react-router';

import { meOptions } from '~/access/rights';
import { asProblem } from '~/api/problem';
import { query } from '~/api/client';
import { NotFoundPage, ProblemPage } from '~/components/ProblemPage';

import { Shell } from './Shell';

export interface RouterContext {
  queries: QueryClient;
}

export const rootRoute = createRootRouteWithContext<RouterContext>()({
  component: Outlet,
  notFoundComponent: NotFoundPage,
  errorComponent: ({ error, reset }) => <ProblemPage error={error} retry={reset} />,
});

/** Pages for who is signed in. Everybody else is sent to sign in, and comes back afterwards. */
export const signedInRoute = createRoute({
  getParentRoute: () => rootRoute,
  id: 'signed-in',
  component: Shell,
  beforeLoad: async ({ context, location }) => {
    try {
      await context.queries.ensureQueryData(meOptions);
    } catch (error) {
      if (asProblem(error).status !== 401) throw error;
      throw redirect({ to: '/sign-in', search: { next: location.href } });
    }
  },
});

/** Pages of one tenant, `/tenants/$tenant/…`. The tenant is named in the path by its name or id. */
export const tenantRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: 'tenants/$tenant',
  component: Outlet,
  loader: ({ context, params }) => context.queries.ensureQueryData(tenantOptions(params.tenant)),
});

/** Any other path, inside the frame. */
export const unknownRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: '$',
  component: NotFoundPage,
});

/** Pages of the platform, `/platform/…`. */
export const platformRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: 'platform',
  component: Outlet,
});

/** The query of a tenant by its name or id. */
export function tenantOptions(tenant: string) {
  return query.queryOptions(
    'get',
    '/admin/v1/tenants/{tenant}',
    { params: { path: { tenant } } },
    { staleTime: 60_000 },
  );
}
