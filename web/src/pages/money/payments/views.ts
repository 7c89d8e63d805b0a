/** The lists that the pages of payments show, one at a time; which one stands in the URL. */
import { oneOf, type Search } from '~/app/search';

export const TENANT_VIEWS = {
  'top-ups': 'Top-ups',
  receipts: 'Money that came in',
  disputes: 'Disputes',
  reminders: 'Reminders',
} as const;
export const OFFICE_VIEWS = {
  unmatched: 'Unmatched payments',
  tasks: 'Open tasks',
  disputes: 'Disputes',
  dunning: 'Reminders that were sent',
  due: 'Reminders that are due',
  receipts: 'All money that came in',
  comparisons: 'Comparisons with the provider',
} as const;

export type TenantView = keyof typeof TENANT_VIEWS;
export type OfficeView = keyof typeof OFFICE_VIEWS;

/** The list of a tenant that a search names. */
export function tenantView(search: Search): { show?: TenantView } {
  return { show: oneOf(search, 'show', Object.keys(TENANT_VIEWS) as TenantView[]) };
}

/** The list of all tenants that a search names. */
export function officeView(search: Search): { show?: OfficeView } {
  return { show: oneOf(search, 'show', Object.keys(OFFICE_VIEWS) as OfficeView[]) };
}
