/** A tenant's terms: what changes the list prices, now and before, and setting them from a month on. */
import { Button, Modal, Stack, Text, Title } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { getRouteApi } from '@tanstack/react-router';

import { may, useMe } from '~/access/rights';
import { api, query, type Schema } from '~/api/client';
import type { Column } from '~/components/DataTable';
import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';
import { PagedTable } from '~/components/PagedTable';
import { Instant } from '~/components/values';

import { TermsForm } from './TermsForm';
import { TermsShown } from './TermsShown';

type Contract = Schema<'ContractObject'>;

const PATH = '/admin/v1/tenants/{tenant}/terms';
const HISTORY = '/admin/v1/tenants/{tenant}/terms/history';
const route = getRouteApi('/signed-in/tenants/$tenant');

const COLUMNS: Column<{ id: string; contract: Contract }>[] = [
  { header: 'Number', numeric: true, cell: (row) => row.id },
  { header: 'From', cell: (row) => row.contract.from_period },
  { header: 'Terms', cell: (row) => <TermsShown terms={row.contract.terms} /> },
  { header: 'Set by', cell: (row) => row.contract.author },
  { header: 'Reason', cell: (row) => row.contract.reason },
  { header: 'Set', cell: (row) => <Instant at={row.contract.created_at} /> },
];

export function TermsPage() {
  const { tenant } = route.useParams();
  const { id } = route.useLoaderData();
  const mayWrite = may(useMe(), 'terms.write', id);
  const terms = query.useQuery('get', PATH, { params: { path: { tenant } } });
  return (
    <Page
      title="Terms"
      about="What changes the list prices for this tenant: steps by volume, discounts, a minimum, a commitment."
      actions={mayWrite && terms.data && <SetTerms tenant={tenant} contract={terms.data} />}
    >
      <Stack gap="xl">
        <section aria-labelledby="current">
          <Title order={2} id="current" mb="xs">
            This month
          </Title>
          <Loaded query={terms} what="the terms" height={160}>
            {(contract) => <Current contract={contract} />}
          </Loaded>
        </section>
        <section aria-labelledby="history">
          <Title order={2} id="history" mb="xs">
            History
          </Title>
          <PagedTable
            caption={`Terms of ${tenant} as they were set`}
            what="the history"
            columns={COLUMNS}
            empty="None were ever set: list prices apply."
            queryKey={['get', HISTORY, tenant]}
            read={async (after, signal) => {
              const params = { path: { tenant }, query: { after, limit: 20 } };
              const page = (await api.GET(HISTORY, { params, signal })).data!;
              return { ...page, data: page.data.map((contract) => ({ id: String(contract.number), contract })) };
            }}
          />
        </section>
      </Stack>
    </Page>
  );
}

function Current({ contract }: { contract: Contract }) {
  if (contract.number === null) return <Text>List prices apply.</Text>;
  return (
    <Stack gap="xs">
      <TermsShown terms={contract.terms} />
      <Text size="sm" c="dimmed">
        Set by {contract.author}, from {contract.from_period} on{contract.reason && `: ${contract.reason}`}
      </Text>
    </Stack>
  );
}

function SetTerms({ tenant, contract }: { tenant: string; contract: Contract }) {
  const [opened, { open, close }] = useDisclosure();
  return (
    <>
      <Button onClick={open}>Set terms</Button>
      <Modal opened={opened} onClose={close} title={`Set all terms of ${tenant}`} size="xl">
        {opened && <TermsForm tenant={tenant} contract={contract} close={close} />}
      </Modal>
    </>
  );
}
