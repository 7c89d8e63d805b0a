/** The projects of a tenant, for choices and for names beside ids. */
import { query, type Schema } from '~/api/client';

const MOST = 100;

/** The first hundred projects of a tenant by name; none until they are read. */
export function useProjects(tenant: string): Schema<'ProjectObject'>[] {
  return useReadProjects(tenant) ?? [];
}

/** The same; undefined until they are read. */
export function useReadProjects(tenant: string): Schema<'ProjectObject'>[] | undefined {
  const params = { path: { tenant }, query: { limit: MOST } };
  return query.useQuery('get', '/admin/v1/tenants/{tenant}/projects', { params }, { staleTime: 60_000 }).data?.data;
}
