/** Trying a model: a question to a project's models, what it would cost, its answer, and what it did cost. */
import { Anchor, Box, Stack, Text } from '@mantine/core';
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { query, type Schema } from '~/api/client';
import { Choice } from './Choice';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Remark } from '~/components/Remark';
import { useProjectsQuery } from '~/pages/access/useProjects';

import { Playground } from './Playground';

const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/playground');

export function PlaygroundPage() {
  const { tenant } = route.useParams();
  const projects = useProjectsQuery(tenant);
  return (
    <Page
      title="Playground"
      about="Ask a model. A question is billed to its project as any request; what is asked and answered is not kept here."
    >
      <Loaded query={projects} what="the projects" height={400}>
        {(data) => <InProject projects={data.data} />}
      </Loaded>
    </Page>
  );
}

function InProject({ projects }: { projects: Schema<'ProjectObject'>[] }) {
  const { tenant } = route.useParams();
  const { id } = tenantRoute.useLoaderData();
  const search = route.useSearch();
  const me = useMe();
  const navigate = useNavigate();
  const open = projects.filter((project) => may(me, 'inference', id, project.id));
  const chosen = open.find((project) => project.name === search.project) ?? open[0];
  if (chosen === undefined) {
    return (
      <Remark title="No project to ask in">
        There is no project whose models you may ask. See the{' '}
        <Anchor component={Link} to="/tenants/$tenant/projects" params={{ tenant } as never} underline="always">
          projects
        </Anchor>
        .
      </Remark>
    );
  }
  return (
    <Stack>
      <Box maw={400}>
        <Choice
          label="Project"
          value={chosen.name}
          choices={open.map((project) => [project.name, project.name])}
          set={(project) => void navigate({ to: '.', search: { project } as never, replace: true })}
        />
      </Box>
      <Offered key={chosen.id} tenant={tenant} project={chosen.name} />
    </Stack>
  );
}

function Offered({ tenant, project }: { tenant: string; project: string }) {
  const offered = query.useQuery('get', '/admin/v1/tenants/{tenant}/projects/{project}/playground', {
    params: { path: { tenant, project } },
  });
  return (
    <Loaded query={offered} what="the models" height={400}>
      {(data) =>
        data.models.length === 0 ? (
          <Text>No model is served.</Text>
        ) : (
          <Playground tenant={tenant} project={project} offered={data} />
        )
      }
    </Loaded>
  );
}
