/** The usage explorer over all tenants. */
import { getRouteApi } from '@tanstack/react-router';

import { query } from '~/api/client';
import { Page } from '~/components/Page';

import { PLATFORM_GROUPS, seriesQuery } from './search';
import type { Series } from './series';
import { UsageExplorer } from './UsageExplorer';

const PATH = '/admin/v1/usage/series';
const route = getRouteApi('/signed-in/platform/usage');

export function AllUsagePage() {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const asked = seriesQuery({ ...search, project: undefined, key: undefined });
  const series = query.useQuery('get', PATH, { params: { query: asked as never } });
  return (
    <Page title="All usage" about="What all tenants that you may see whole used, and what it cost.">
      <UsageExplorer
        path={PATH}
        series={{ ...series, data: series.data as Series | undefined }}
        search={search}
        change={(next) => void navigate({ search: next, replace: true })}
        groups={PLATFORM_GROUPS}
      />
    </Page>
  );
}
