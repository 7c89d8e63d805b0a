/** One request on a page of its own, to which links lead. */
import { Anchor } from '@mantine/core';
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router';

import { Page } from '~/components/Page';

import { Neighbours } from './Neighbours';
import { RequestView, useRequestDetails } from './RequestView';
import { requestFilters } from './search';

const route = getRouteApi('/signed-in/tenants/$tenant/requests/$request');

export function RequestPage() {
  const { tenant, request } = route.useParams();
  const filters = route.useSearch({ select: (search) => requestFilters({ ...search }) });
  const navigate = useNavigate();
  const details = useRequestDetails(tenant, request).data;
  const go = (id: string): void =>
    void navigate({ to: '/tenants/$tenant/requests/$request', params: { tenant, request: id }, search: filters });
  return (
    <Page
      key={request}
      title={`Request ${request}`}
      about={
        <Anchor component={Link} to={`/tenants/${tenant}/requests`} search={filters as never} size="sm">
          All requests
        </Anchor>
      }
      actions={<Neighbours tenant={tenant} cursor={details?.request?.cursor} filters={filters} go={go} />}
    >
      <RequestView tenant={tenant} name={request} />
    </Page>
  );
}
