/** The people of a tenant. */
import { Stack, Text } from '@mantine/core';
import { getRouteApi, Link } from '@tanstack/react-router';

import { Page } from '~/components/Page';

import { Members } from './Members';

const route = getRouteApi('/signed-in/tenants/$tenant');

export function MembersPage() {
  const { tenant } = route.useParams();
  const { id } = route.useLoaderData();
  return (
    <Page title="Members" about={`Roles at the tenant ${tenant} hold in all of its projects.`}>
      <Stack>
        <Members scope={{ tenant, tenantId: id }} />
        <Text size="sm">
          Who has a role in one project alone is on{' '}
          <Link to="/tenants/$tenant/projects" params={{ tenant }}>
            the project&apos;s page
          </Link>
          .
        </Text>
      </Stack>
    </Page>
  );
}
