/** The projects of a tenant, for choices and for names beside ids. */
import { query, type Schema } from '~/api/client';

const MOST = 100;

/** The query of the first hundred projects of a tenant by name. */
export function useProjectsQuery(tenant: string) {
  const params = { path: { tenant }, query: { limit: MOST } };
  return query.useQuery('get', '/admin/v1/tenants/{tenant}/projects', { params }, { staleTime: 60_000 });
}

/** Those projects; none until they are read. */
export function useProjects(tenant: string): Schema<'ProjectObject'>[] {
  return useProjectsQuery(tenant).data?.data ?? [];
}
