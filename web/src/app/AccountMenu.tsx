/** Who is signed in, the colour scheme, help, and signing out. */
import { ActionIcon, Menu, useComputedColorScheme, useMantineColorScheme } from '@mantine/core';
import { IconBook, IconLogout, IconMoon, IconSun, IconUserCircle } from '@tabler/icons-react';
import { useQueryClient } from '@tanstack/react-query';
import { Link, useNavigate } from '@tanstack/react-router';

import type { Me } from '~/access/rights';
import { api } from '~/api/client';

export function AccountMenu({ me }: { me: Me }) {
  const scheme = useComputedColorScheme();
  const { setColorScheme } = useMantineColorScheme();
  const queries = useQueryClient();
  const navigate = useNavigate();
  const signOut = async (): Promise<void> => {
    await api.DELETE('/admin/v1/session');
    queries.clear();
    await navigate({ to: '/sign-in' });
  };
  const other = scheme === 'dark' ? 'light' : 'dark';
  return (
    <Menu position="bottom-end" keepMounted={false}>
      <Menu.Target>
        <ActionIcon variant="subtle" size="lg" aria-label={`Account of ${me.email}`}>
          <IconUserCircle aria-hidden />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label className="wraps">{me.email}</Menu.Label>
        <Menu.Item component={Link} to="/account" leftSection={<IconUserCircle size={16} aria-hidden />}>
          Your account
        </Menu.Item>
        <Menu.Item
          onClick={() => setColorScheme(other)}
          leftSection={other === 'dark' ? <IconMoon size={16} aria-hidden /> : <IconSun size={16} aria-hidden />}
        >
          Use {other} colours
        </Menu.Item>
        <Menu.Item component="a" href="/docs" leftSection={<IconBook size={16} aria-hidden />}>
          API documentation
        </Menu.Item>
        <Menu.Item onClick={() => void signOut()} leftSection={<IconLogout size={16} aria-hidden />}>
          Sign out
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
