import '@mantine/core/styles.css';
import '@mantine/notifications/styles.css';
import './app/console.css';

import { MantineProvider } from '@mantine/core';
import { Notifications } from '@mantine/notifications';
import { RouterProvider } from '@tanstack/react-router';
import { setNonce } from 'get-nonce';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';

import { meOptions } from './access/rights';
import { queries, router } from './app/router';
import { tenantsOptions } from './app/TenantSwitcher';
import { cssVariables, theme } from './app/theme';

const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')!.content;
setNonce(nonce); // for the style that locks scrolling behind a dialog

// After a deployment an open page names files that are gone: load it anew, once.
const RELOADED = 'turnpike.reloaded';
window.addEventListener('vite:preloadError', (event) => {
  if (sessionStorage.getItem(RELOADED) !== null) return;
  sessionStorage.setItem(RELOADED, '1');
  event.preventDefault();
  location.reload();
});
window.addEventListener('load', () => setTimeout(() => sessionStorage.removeItem(RELOADED), 10_000));

// What every page needs is asked for at once, not one after another; who is not signed in gets the door for it.
if (!/\/(sign-in|link)$/.test(location.pathname)) {
  void queries.prefetchQuery(meOptions);
  void queries.prefetchQuery(tenantsOptions);
}

createRoot(document.getElementById('root')!).render(
  <StrictMode>
    <MantineProvider
      theme={theme}
      defaultColorScheme="auto"
      cssVariablesResolver={cssVariables}
      getStyleNonce={() => nonce}
    >
      <Notifications position="bottom-right" />
      <RouterProvider router={router} />
    </MantineProvider>
  </StrictMode>,
);
