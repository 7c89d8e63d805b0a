/** Balance, invoices, terms, exports and webhooks of a tenant; prices, periods and sellers of the platform. */
import { createRoute, lazyRouteComponent } from '@tanstack/react-router';

import { platformRoute, tenantRoute } from '~/app/parents';
import { oneOf, type Search, text } from '~/app/search';

import { invoiceFilters, type OpenedLine } from './invoices/filters';
import { officeView, tenantView } from './payments/views';

/** A whole number of the search; undefined for anything else. */
function whole(search: Search, name: string): number | undefined {
  const value = text(search, name);
  return value !== undefined && /^\d{1,9}$/.test(value) ? Number(value) : undefined;
}

const invoicesRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'invoices',
  validateSearch: invoiceFilters,
  component: lazyRouteComponent(() => import('./invoices/InvoicesPage'), 'InvoicesPage'),
});

/** `line`, `day` and `hour`: how far a line is opened. */
const invoiceRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'invoices/$invoice',
  validateSearch: (search): OpenedLine => ({
    line: whole(search, 'line'),
    day: text(search, 'day'),
    hour: whole(search, 'hour'),
  }),
  component: lazyRouteComponent(() => import('./invoices/InvoicePage'), 'InvoicePage'),
});

const balanceRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'balance',
  validateSearch: (search): { from?: string; to?: string; every?: 'true' } => ({
    from: text(search, 'from'),
    to: text(search, 'to'),
    every: oneOf(search, 'every', ['true']),
  }),
  component: lazyRouteComponent(() => import('./balance/BalancePage'), 'BalancePage'),
});

const paymentsRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'payments',
  validateSearch: tenantView,
  component: lazyRouteComponent(() => import('./payments/TenantPaymentsPage'), 'TenantPaymentsPage'),
});

const termsRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'terms',
  component: lazyRouteComponent(() => import('./terms/TermsPage'), 'TermsPage'),
});

const buyerRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'buyer',
  component: lazyRouteComponent(() => import('./parties/BuyerPage'), 'BuyerPage'),
});

const exportsRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'exports',
  component: lazyRouteComponent(() => import('./exports/ExportsPage'), 'ExportsPage'),
});

const webhooksRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'webhooks',
  component: lazyRouteComponent(() => import('./webhooks/WebhooksPage'), 'WebhooksPage'),
});

const endpointRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'webhooks/$endpoint',
  component: lazyRouteComponent(() => import('./webhooks/EndpointPage'), 'EndpointPage'),
});

const deliveryRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: 'webhooks/$endpoint/deliveries/$delivery',
  component: lazyRouteComponent(() => import('./webhooks/DeliveryPage'), 'DeliveryPage'),
});

const allInvoicesRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'invoices',
  validateSearch: invoiceFilters,
  component: lazyRouteComponent(() => import('./invoices/AllInvoicesPage'), 'AllInvoicesPage'),
});

const allPaymentsRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'payments',
  validateSearch: officeView,
  component: lazyRouteComponent(() => import('./payments/OfficePaymentsPage'), 'OfficePaymentsPage'),
});

const pricesRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'prices',
  validateSearch: (search): { book?: string; at?: string } => ({ book: text(search, 'book'), at: text(search, 'at') }),
  component: lazyRouteComponent(() => import('./prices/PricesPage'), 'PricesPage'),
});

const proposalRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'prices/new',
  validateSearch: (search): { book?: string; model?: string } => ({
    book: text(search, 'book'),
    model: text(search, 'model'),
  }),
  component: lazyRouteComponent(() => import('./prices/ProposalPage'), 'ProposalPage'),
});

const sheetRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'prices/sheets/$number',
  component: lazyRouteComponent(() => import('./prices/SheetPage'), 'SheetPage'),
});

const periodsRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'periods',
  component: lazyRouteComponent(() => import('./periods/PeriodsPage'), 'PeriodsPage'),
});

const sellersRoute = createRoute({
  getParentRoute: () => platformRoute,
  path: 'sellers',
  component: lazyRouteComponent(() => import('./parties/SellersPage'), 'SellersPage'),
});

export const tenantMoneyRoutes = [
  invoicesRoute,
  invoiceRoute,
  balanceRoute,
  paymentsRoute,
  termsRoute,
  buyerRoute,
  exportsRoute,
  webhooksRoute,
  endpointRoute,
  deliveryRoute,
] as const;

export const platformMoneyRoutes = [
  allInvoicesRoute,
  allPaymentsRoute,
  pricesRoute,
  proposalRoute,
  sheetRoute,
  periodsRoute,
  sellersRoute,
] as const;
