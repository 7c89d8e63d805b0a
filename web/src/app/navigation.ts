/** What the navigation lists, in order: each page with the permission that it needs. */
import {
  IconAdjustments,
  IconBan,
  IconBuildingBank,
  IconBuildingStore,
  IconBuildings,
  IconCalendarCheck,
  IconCash,
  IconChartBar,
  IconChecklist,
  IconCoins,
  IconCreditCard,
  IconDatabase,
  IconFileInvoice,
  IconFiles,
  IconFileText,
  IconFolder,
  IconForbid,
  IconGauge,
  IconKey,
  IconLayoutDashboard,
  IconListDetails,
  IconMessage,
  IconPackageExport,
  IconPuzzle,
  IconReceipt,
  IconServer,
  IconShieldLock,
  IconStack2,
  IconTimeline,
  IconUser,
  IconUsers,
  IconWebhook,
} from '@tabler/icons-react';
import type { ComponentType } from 'react';

import type { Permission } from '~/access/rights';

export interface PageEntry {
  label: string;
  /** The path; `$tenant` stands for the tenant that is chosen. */
  to: string;
  permission: Permission;
  icon: ComponentType<{ size?: number; stroke?: number; 'aria-hidden'?: boolean }>;
}

export interface Group {
  label: string;
  pages: PageEntry[];
}

export const TENANT_GROUPS: Group[] = [
  {
    label: 'Observe',
    pages: [
      { label: 'Overview', to: '/tenants/$tenant/overview', permission: 'usage.read', icon: IconLayoutDashboard },
      { label: 'Usage', to: '/tenants/$tenant/usage', permission: 'usage.read', icon: IconChartBar },
      { label: 'Cache', to: '/tenants/$tenant/cache', permission: 'caches.read', icon: IconDatabase },
      { label: 'Requests', to: '/tenants/$tenant/requests', permission: 'requests.read', icon: IconTimeline },
      { label: 'Batches', to: '/tenants/$tenant/batches', permission: 'requests.read', icon: IconStack2 },
      { label: 'Files', to: '/tenants/$tenant/files', permission: 'requests.read', icon: IconFiles },
      { label: 'Adapters', to: '/tenants/$tenant/adapters', permission: 'requests.read', icon: IconPuzzle },
      { label: 'Refused', to: '/tenants/$tenant/refused', permission: 'requests.read', icon: IconForbid },
      { label: 'Playground', to: '/tenants/$tenant/playground', permission: 'inference', icon: IconMessage },
    ],
  },
  {
    label: 'Access',
    pages: [
      { label: 'Keys', to: '/tenants/$tenant/keys', permission: 'keys.read', icon: IconKey },
      { label: 'Projects', to: '/tenants/$tenant/projects', permission: 'projects.read', icon: IconFolder },
      { label: 'Members', to: '/tenants/$tenant/members', permission: 'members.read', icon: IconUsers },
      { label: 'Limits', to: '/tenants/$tenant/limits', permission: 'limits.read', icon: IconGauge },
      { label: 'Budgets', to: '/tenants/$tenant/budgets', permission: 'budgets.read', icon: IconCoins },
      { label: 'Webhooks', to: '/tenants/$tenant/webhooks', permission: 'webhooks.read', icon: IconWebhook },
      { label: 'Audit log', to: '/tenants/$tenant/audit', permission: 'audit.read', icon: IconListDetails },
    ],
  },
  {
    label: 'Money',
    pages: [
      { label: 'Invoices', to: '/tenants/$tenant/invoices', permission: 'invoices.read', icon: IconFileInvoice },
      { label: 'Balance', to: '/tenants/$tenant/balance', permission: 'balance.read', icon: IconCash },
      { label: 'Payments', to: '/tenants/$tenant/payments', permission: 'payments.read', icon: IconCreditCard },
      { label: 'Terms', to: '/tenants/$tenant/terms', permission: 'terms.read', icon: IconFileText },
      { label: 'Buyer', to: '/tenants/$tenant/buyer', permission: 'parties.read', icon: IconBuildingStore },
      { label: 'Exports', to: '/tenants/$tenant/exports', permission: 'exports.read', icon: IconPackageExport },
    ],
  },
];

export const PLATFORM_GROUP: Group = {
  label: 'Platform',
  pages: [
    { label: 'All tenants', to: '/platform/overview', permission: 'tenants.read', icon: IconLayoutDashboard },
    { label: 'Tenants', to: '/platform/tenants', permission: 'tenants.read', icon: IconBuildings },
    { label: 'All usage', to: '/platform/usage', permission: 'usage.read', icon: IconChartBar },
    { label: 'Fleet', to: '/platform/fleet', permission: 'fleet.read', icon: IconServer },
    { label: 'Approvals', to: '/platform/approvals', permission: 'approvals.read', icon: IconChecklist },
    { label: 'Prices', to: '/platform/prices', permission: 'prices.read', icon: IconReceipt },
    { label: 'All invoices', to: '/platform/invoices', permission: 'invoices.read', icon: IconFileInvoice },
    { label: 'Payments', to: '/platform/payments', permission: 'payments.read', icon: IconCreditCard },
    { label: 'Periods', to: '/platform/periods', permission: 'periods.read', icon: IconCalendarCheck },
    { label: 'Sellers', to: '/platform/sellers', permission: 'sellers.read', icon: IconBuildingBank },
    { label: 'Users', to: '/platform/users', permission: 'members.read', icon: IconUser },
    { label: 'Operators', to: '/platform/members', permission: 'members.read', icon: IconUsers },
    { label: 'Operator keys', to: '/platform/operator-keys', permission: 'platform.read', icon: IconShieldLock },
    { label: 'Suspensions', to: '/platform/suspensions', permission: 'tenants.read', icon: IconBan },
    { label: 'Audit log', to: '/platform/audit', permission: 'audit.read', icon: IconListDetails },
    { label: 'Settings', to: '/platform/settings', permission: 'platform.read', icon: IconAdjustments },
  ],
};
