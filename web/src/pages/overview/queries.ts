/** What the overviews ask for first. Their routes ask it before the pages' code has come. */
import { query } from '~/api/client';

/** The query of a tenant's overview. */
export function overviewOptions(tenant: string) {
  return query.queryOptions('get', '/admin/v1/tenants/{tenant}/overview', { params: { path: { tenant } } });
}

/** The query of the overview of all tenants. */
export const allTenantsOptions = query.queryOptions('get', '/admin/v1/overview', {});
