/** The invoices and credit notes of all tenants, newest first. */
import { useNavigate } from '@tanstack/react-router';
import { getRouteApi } from '@tanstack/react-router';

import { api } from '~/api/client';
import { useTenants } from '~/app/TenantSwitcher';
import { Page } from '~/components/Page';

import { invoiceFilters } from './filters';
import { invoiceColumns, InvoiceTable } from './InvoiceTable';

const PATH = '/admin/v1/invoices';
const route = getRouteApi('/signed-in/platform/invoices');

export function AllInvoicesPage() {
  const filters = route.useSearch({ select: (search) => invoiceFilters({ ...search }) });
  const navigate = useNavigate();
  const tenants = useTenants() ?? [];
  const nameOf = (id: string): string => tenants.find((tenant) => tenant.id === id)?.name ?? id;
  const columns = invoiceColumns((invoice) => nameOf(invoice.tenant_id));
  columns.splice(1, 0, { header: 'Tenant', cell: (invoice) => nameOf(invoice.tenant_id) });
  return (
    <Page title="All invoices" about="What was billed to all tenants, newest first.">
      <InvoiceTable
        caption="Invoices of all tenants"
        columns={columns}
        filters={filters}
        setFilters={(search) => void navigate({ to: '/platform/invoices', search })}
        queryKey={['get', PATH]}
        read={async (after, signal) => {
          const params = { query: { ...filters, after, limit: 50 } };
          return (await api.GET(PATH, { params, signal })).data!;
        }}
      />
    </Page>
  );
}
