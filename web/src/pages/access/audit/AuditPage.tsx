/** The audit log of a tenant, and that over all. */
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { Page } from '~/components/Page';

import { mayAt } from '../members/scope';
import { AuditLog } from './AuditLog';
import { auditFilters } from './filters';

const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/audit');
const platformRoute = getRouteApi('/signed-in/platform/audit');

export function AuditPage() {
  const { tenant } = route.useParams();
  const { id } = tenantRoute.useLoaderData();
  const navigate = route.useNavigate();
  const chain = mayAt(useMe(), 'audit.read', { tenant, tenantId: id });
  return (
    <Page title="Audit log" about={`Every change of money, access, sharing or prices of ${tenant}.`}>
      <AuditLog
        filters={route.useSearch({ select: auditFilters })}
        set={(search) => void navigate({ search })}
        tenant={tenant}
        chain={chain}
      />
    </Page>
  );
}

export function PlatformAuditPage() {
  const navigate = platformRoute.useNavigate();
  return (
    <Page
      title="Audit log"
      about="Every change of money, access, sharing or prices, of all tenants and of the platform."
    >
      <AuditLog
        filters={platformRoute.useSearch({ select: auditFilters })}
        set={(search) => void navigate({ search })}
        chain={may(useMe(), 'audit.read')}
      />
    </Page>
  );
}
