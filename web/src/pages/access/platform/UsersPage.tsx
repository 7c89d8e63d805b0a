/** All users of the platform. */
import { Button, Group, TextInput } from '@mantine/core';
import { useInfiniteQuery } from '@tanstack/react-query';
import { getRouteApi, Link } from '@tanstack/react-router';

import { api, type Schema } from '~/api/client';
import { useTenants } from '~/app/TenantSwitcher';
import { type Column, DataTable } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { Instant, State } from '~/components/values';

type User = Schema<'UserObject'>;

const PATH = '/admin/v1/users';
const route = getRouteApi('/signed-in/platform/users');

export function UsersPage() {
  const { find = '' } = route.useSearch();
  const navigate = route.useNavigate();
  const tenants = new Map(useTenants()?.map((one) => [one.id, one.name]));
  const users = useInfiniteQuery({
    queryKey: ['get', PATH],
    queryFn: async ({ pageParam, signal }) =>
      (await api.GET(PATH, { params: { query: { after: pageParam, limit: 100 } }, signal })).data!,
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => (last.has_more ? last.data.at(-1)?.email : undefined), // its cursor is the address
  });
  const matches = (user: User): boolean => `${user.email} ${user.name}`.toLowerCase().includes(find.toLowerCase());
  return (
    <Page
      title="Users"
      about={
        <>
          Who runs the platform is on <Link to="/platform/members">the operators&apos; page</Link>.
        </>
      }
    >
      <Group>
        <TextInput
          type="search"
          label="Find"
          placeholder="Name or e-mail address"
          value={find}
          onChange={(event) =>
            void navigate({ search: { find: event.currentTarget.value || undefined }, replace: true })
          }
        />
      </Group>
      <Loaded query={users} what="the users">
        {({ pages }) => (
          <>
            <DataTable
              caption="Users"
              columns={columns(tenants)}
              rows={pages.flatMap((page) => page.data).filter(matches)}
              rowKey={(one) => one.id}
              empty="There is no such user. Who is invited becomes one."
            />
            {users.hasNextPage && (
              <Group>
                <Button variant="default" loading={users.isFetchingNextPage} onClick={() => void users.fetchNextPage()}>
                  Show more
                </Button>
              </Group>
            )}
          </>
        )}
      </Loaded>
    </Page>
  );
}

function columns(tenants: Map<string, string>): Column<User>[] {
  return [
    {
      header: 'E-mail address',
      cell: (user) => (
        <Link to="/platform/users/$user" params={{ user: user.id }} className="unbroken">
          {user.email}
        </Link>
      ),
    },
    { header: 'Name', cell: (user) => <span className="wraps">{user.name || '–'}</span> },
    { header: 'Roles', cell: (user) => user.memberships.map((one) => roleOf(one, tenants)).join(', ') || 'none' },
    {
      header: 'Second factor',
      cell: (user) => (
        <State tone={user.has_second_factor ? 'good' : 'waiting'}>{user.has_second_factor ? 'on' : 'off'}</State>
      ),
    },
    {
      header: 'State',
      cell: (user) => (user.disabled_at === null ? 'may sign in' : <State tone="bad">disabled</State>),
    },
    { header: 'Created', cell: (user) => <Instant at={user.created_at} distance /> },
  ];
}

/** A role in words, with the name of its tenant. */
export function roleOf(one: User['memberships'][number], tenants: Map<string, string>): string {
  if (one.tenant === null) return `${one.role} at the platform`;
  const tenant = tenants.get(one.tenant) ?? one.tenant;
  return one.project === null ? `${one.role} at ${tenant}` : `${one.role} in a project of ${tenant}`;
}
