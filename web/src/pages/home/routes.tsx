/** `/`: the page that the user most likely wants first. */
import { createRoute, redirect } from '@tanstack/react-router';

import { isOperator, may, meOptions } from '~/access/rights';
import { signedInRoute } from '~/app/parents';
import { tenantsOptions } from '~/app/TenantSwitcher';

export const homeRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: '/',
  beforeLoad: async ({ context }) => {
    const me = await context.queries.ensureQueryData(meOptions);
    if (isOperator(me)) throw redirect({ to: '/platform/overview' as '/' });
    const { data } = await context.queries.ensureQueryData(tenantsOptions);
    const first = data[0];
    if (first === undefined) throw redirect({ to: '/account' as '/' });
    // Who may not see keys works with money: their first page is the invoices.
    const page = may(me, 'keys.read', first.id) ? 'overview' : 'invoices';
    throw redirect({ to: `/tenants/${first.name}/${page}` as '/' });
  },
});
