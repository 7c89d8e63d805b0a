/** The usage explorer of one tenant. */
import { getRouteApi } from '@tanstack/react-router';

import { query } from '~/api/client';
import { Page } from '~/components/Page';

import { GROUPS, seriesQuery } from './search';
import type { Series } from './series';
import { UsageExplorer } from './UsageExplorer';

const PATH = '/admin/v1/tenants/{tenant}/usage/series';
const route = getRouteApi('/signed-in/tenants/$tenant/usage');

export function UsagePage() {
  const { tenant } = route.useParams();
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const asked = seriesQuery(search) as never;
  const series = query.useQuery('get', PATH, { params: { path: { tenant }, query: asked } });
  return (
    <Page title="Usage" about={`What ${tenant} used and what it cost, from the sums by hour.`}>
      <UsageExplorer
        path={PATH.replace('{tenant}', encodeURIComponent(tenant))}
        series={{ ...series, data: series.data as Series | undefined }}
        search={search}
        change={(next) => void navigate({ search: next, replace: true })}
        groups={GROUPS}
        tenant={tenant}
      />
    </Page>
  );
}
