/** The frame of every page for who is signed in: header with tenant and account, navigation, and the page. */
import { Anchor, AppShell, Burger, Group, NavLink, ScrollArea, UnstyledButton } from '@mantine/core';
import { useDisclosure, useLocalStorage } from '@mantine/hooks';
import { IconChevronDown, IconChevronRight } from '@tabler/icons-react';
import { Link, Outlet, useLocation } from '@tanstack/react-router';
import { useEffect, useMemo } from 'react';

import { isOperator, may, type Me, useMe } from '~/access/rights';
import { ProofDialog } from '~/components/ProofDialog';

import { AccountMenu } from './AccountMenu';
import { type Group as PageGroup, PLATFORM_GROUP, TENANT_GROUPS } from './navigation';
import { useScrollKept } from './scroll';
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
  useScrollKept();
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
            <PageGroupLinks key={group.label} group={group} tenant={tenant?.name ?? ''} pathname={pathname} />
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

interface PageGroupLinksProps {
  group: PageGroup;
  tenant: string;
  pathname: string;
}

/** A group's heading, which folds its pages away, and their links. What is folded stays so on this browser. */
function PageGroupLinks({ group, tenant, pathname }: PageGroupLinksProps) {
  const [folded, setFolded] = useLocalStorage({ key: `turnpike.folded.${group.label}`, defaultValue: false });
  const pages = group.pages.map((page) => {
    const to = page.to.replace('$tenant', tenant);
    return { ...page, to, active: pathname === to || pathname.startsWith(`${to}/`) };
  });
  const Chevron = folded ? IconChevronRight : IconChevronDown;
  return (
    <section aria-label={group.label}>
      <UnstyledButton
        onClick={() => setFolded(!folded)}
        aria-expanded={!folded}
        px="xs"
        pt="sm"
        pb={4}
        w="100%"
        fz="xs"
        fw={600}
        c="dimmed"
      >
        <Group justify="space-between" wrap="nowrap">
          {group.label}
          <Chevron size={14} aria-hidden />
        </Group>
      </UnstyledButton>
      {pages
        .filter((page) => !folded || page.active)
        .map((page) => (
          <NavLink
            key={page.to}
            component={Link}
            to={page.to}
            label={page.label}
            active={page.active}
            aria-current={page.active ? 'page' : undefined}
            leftSection={<page.icon size={18} stroke={1.6} aria-hidden />}
            h={34}
          />
        ))}
    </section>
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
