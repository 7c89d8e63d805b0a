/** One project: its keys, limits, people, and whether it is suspended. */
import { Group, Stack } from '@mantine/core';
import { getRouteApi, Link } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { query } from '~/api/client';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Copied, Instant } from '~/components/values';

import { Details } from '../Details';
import { LimitsSection } from '../limits/LimitsSection';
import { Members } from '../members/Members';
import { mayAt } from '../members/scope';
import { Suspension } from './suspension';

const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/projects/$project');

export function ProjectPage() {
  const { tenant, project } = route.useParams();
  const { id } = tenantRoute.useLoaderData();
  const me = useMe();
  const found = query.useQuery('get', '/admin/v1/tenants/{tenant}/projects/{project}', {
    params: { path: { tenant, project } },
  });
  const maySuspend = may(me, 'tenants.write', id);
  const filter = { project } as never;
  return (
    <Page
      title={`Project ${found.data?.name ?? project}`}
      about={
        <Link to="/tenants/$tenant/projects" params={{ tenant }}>
          All projects of {tenant}
        </Link>
      }
      actions={
        found.data?.suspended_at === null && (
          <Suspension tenant={tenant} project={project} suspendedAt={null} mayChange={maySuspend} />
        )
      }
    >
      <Loaded query={found} what="the project" height={300}>
        {(data) => (
          <Stack>
            {data.suspended_at !== null && (
              <Suspension tenant={tenant} project={project} suspendedAt={data.suspended_at} mayChange={maySuspend} />
            )}
            <Details
              label="The project"
              fields={[
                ['Id', <Copied key="id" text={data.id} label="the project's id" />],
                ['Created', <Instant key="created" at={data.created_at} />],
                [
                  'See',
                  <Group key="see" gap="md">
                    {may(me, 'keys.read', id, data.id) && (
                      <Link to="/tenants/$tenant/keys" params={{ tenant }} search={{ project: data.name }}>
                        Its keys
                      </Link>
                    )}
                    <Link to={`/tenants/${tenant}/usage` as '/'} search={filter}>
                      Its usage
                    </Link>
                    <Link to={`/tenants/${tenant}/cache` as '/'} search={filter}>
                      Its cache
                    </Link>
                    <Link to={`/tenants/${tenant}/requests` as '/'} search={filter}>
                      Its requests
                    </Link>
                  </Group>,
                ],
              ]}
            />
            {may(me, 'limits.read', id, data.id) && (
              <LimitsSection
                at={{ scope: 'project', id: data.id }}
                project={data.id}
                mayChange={may(me, 'limits.write', id, data.id)}
              />
            )}
            {mayAt(me, 'members.read', { tenant, tenantId: id, project, projectId: data.id }) && (
              <Members scope={{ tenant, tenantId: id, project: data.name, projectId: data.id }} />
            )}
          </Stack>
        )}
      </Loaded>
    </Page>
  );
}
