/** The invoices and credit notes of a tenant, newest first. */
import { getRouteApi, useNavigate } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api } from '~/api/client';
import { Page } from '~/components/Page';

import { invoiceFilters } from './filters';
import { DraftInvoice } from './InvoiceActions';
import { invoiceColumns, InvoiceTable } from './InvoiceTable';

const PATH = '/admin/v1/tenants/{tenant}/invoices';
const tenantRoute = getRouteApi('/signed-in/tenants/$tenant');
const route = getRouteApi('/signed-in/tenants/$tenant/invoices');

export function InvoicesPage() {
  const { tenant } = tenantRoute.useParams();
  const { id } = tenantRoute.useLoaderData();
  const filters = route.useSearch({ select: (search) => invoiceFilters({ ...search }) });
  const navigate = useNavigate();
  return (
    <Page
      title="Invoices"
      about="What was billed, month by month. Each line opens down to its requests."
      actions={may(useMe(), 'invoices.write', id) && <DraftInvoice tenant={tenant} />}
    >
      <InvoiceTable
        caption={`Invoices of ${tenant}`}
        columns={invoiceColumns(() => tenant)}
        filters={filters}
        setFilters={(search) => void navigate({ to: '/tenants/$tenant/invoices', params: { tenant }, search })}
        queryKey={['get', PATH, tenant]}
        read={async (after, signal) => {
          const params = { path: { tenant }, query: { ...filters, after, limit: 50 } };
          return (await api.GET(PATH, { params, signal })).data!;
        }}
      />
    </Page>
  );
}
