/** The frame of every page for who is signed in: header with tenant and account, navigation, and the page. */
import { Anchor, AppShell, Burger, Group, NavLink, ScrollArea, Text } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { Link, Outlet, useLocation } from '@tanstack/react-router';
import { useEffect, useMemo } from 'react';

import { isOperator, may, type Me, useMe } from '~/access/rights';
import { ProofDialog } from '~/components/ProofDialog';

import { AccountMenu } from './AccountMenu';
import { type Group as PageGroup, PLATFORM_GROUP, TENANT_GROUPS } from './navigation';
import { Shortcuts } from './shortcuts/Shortcuts';
import { TenantSwitcher, useChosenTenant } from './TenantSwitcher';

const HEADER = 56;
const NAVIGATION = 220;

export function Shell() {
  const me = useMe();
  const tenant = useChosenTenant();
  const { pathname } = useLocation();
  const [opened, { toggle, close }] = useDisclosure();
  useEffect(close, [pathname, close]);
  const tenantId = tenant?.id;
  const groups = useMemo(() => shownGroups(me, tenantId), [me, tenantId]);
  return (
    <AppShell
      header={{ height: HEADER }}
      navbar={{ width: NAVIGATION, breakpoint: 'sm', collapsed: { mobile: !opened } }}
      padding="md"
    >
      <a className="skip-link" href="#page">
        Skip to the page
      </a>
      <AppShell.Header>
        <Group h="100%" px="sm" gap="sm" wrap="nowrap">
          <Burger opened={opened} onClick={toggle} hiddenFrom="sm" size="sm" aria-label="Navigation" />
          <Anchor component={Link} to="/" underline="never" fw={700} c="var(--mantine-color-text)" visibleFrom="xs">
            Turnpike
          </Anchor>
          <TenantSwitcher />
          <Group ml="auto" wrap="nowrap">
            <AccountMenu me={me} />
          </Group>
        </Group>
      </AppShell.Header>
      <AppShell.Navbar>
        <ScrollArea component="nav" aria-label="Pages" type="auto" p="xs">
          {groups.map((group) => (
            <section key={group.label} aria-label={group.label}>
              <Text size="xs" c="dimmed" fw={600} px="xs" pt="sm" pb={4}>
                {group.label}
              </Text>
              {group.pages.map((page) => {
                const to = page.to.replace('$tenant', tenant?.name ?? '');
                const active = pathname === to || pathname.startsWith(`${to}/`);
                return (
                  <NavLink
                    key={page.to}
                    component={Link}
                    to={to}
                    label={page.label}
                    active={active}
                    aria-current={active ? 'page' : undefined}
                    leftSection={<page.icon size={18} stroke={1.6} aria-hidden />}
                    h={34}
                  />
                );
              })}
            </section>
          ))}
        </ScrollArea>
      </AppShell.Navbar>
      <AppShell.Main id="page">
        <Outlet />
      </AppShell.Main>
      <ProofDialog me={me} />
      <Shortcuts groups={groups} tenant={tenant?.name} />
    </AppShell>
  );
}

function shownGroups(me: Me, tenant: string | undefined): PageGroup[] {
  const ofTenant = tenant === undefined ? [] : TENANT_GROUPS.map((group) => keep(group, me, tenant));
  const ofPlatform = isOperator(me) ? [keep(PLATFORM_GROUP, me)] : [];
  return [...ofTenant, ...ofPlatform].filter((group) => group.pages.length > 0);
}

function keep(group: PageGroup, me: Me, tenant?: string): PageGroup {
  return { ...group, pages: group.pages.filter((page) => may(me, page.permission, tenant)) };
}
