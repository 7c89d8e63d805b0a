/** Where an invoice's parts come from: the API. */
import { api, type Schema, send } from '~/api/client';

import { allPages } from '../components/all_pages';
import type { Level, Predecessor, Slice, Source } from './verification/verify';
import { sha256 } from './verification/verify';

const AT = '/admin/v1/tenants/{tenant}/invoices/{invoice}';
const DRILL = '/admin/v1/tenants/{tenant}/invoices/{invoice}/lines/{line}/drill';

type Billed = Schema<'BilledRequestObject'>;

/** All lines of an invoice. */
export async function readLines(
  tenant: string,
  invoice: string,
  signal?: AbortSignal,
): Promise<Schema<'LineObject'>[]> {
  return allPages(
    async (after: number | undefined) => {
      const params = { path: { tenant, invoice }, query: { after, limit: 100 } };
      return (await api.GET(`${AT}/lines`, { params, signal })).data!;
    },
    (page) => page.data.at(-1)?.n,
  );
}

/** All requests of an hour of a line, with what the hour says. */
export async function readRequests(
  tenant: string,
  invoice: string,
  line: number,
  day: string,
  hour: number,
): Promise<Level<Billed>> {
  let total: Schema<'Sum'> = { units: 0, exact: '0' };
  const parts = await allPages(
    async (after: string | undefined) => {
      const params = {
        path: { tenant, invoice, line },
        query: { by: 'request', day, hour, after, limit: 1000 } as const,
      };
      const page = (await api.GET(DRILL, { params })).data! as Schema<'BilledRequestObjectDrill'>;
      ({ total } = page);
      return page;
    },
    (page) => page.next,
  );
  return { total, parts };
}

/** The parts of an invoice for its verification in the browser. */
export function invoiceSource(tenant: string, invoice: Schema<'InvoiceDetails'>): Source {
  const path = { tenant, invoice: invoice.id };
  const at = `/admin/v1/tenants/${encodeURIComponent(tenant)}/invoices`;
  const bytes = async (url: string): Promise<Uint8Array> =>
    new Uint8Array(await (await send(new Request(url))).arrayBuffer());
  const slices = async (line: number, by: 'day' | 'hour', day?: string): Promise<Level<Slice>> => {
    const level = (await api.GET(DRILL, { params: { path: { ...path, line }, query: { by, day } } })).data!;
    return { total: level.total, parts: level.data as Slice[] };
  };
  return {
    stated: invoice,
    bundle: () => bytes(`${at}/${invoice.id}/bundle`),
    predecessor: async (): Promise<Predecessor | null> => {
      const { previous } = (await api.GET(`${AT}/verification`, { params: { path } })).data!;
      if (previous === null) return null;
      const { number, sha256: digest } = previous;
      if (number === null || previous.tenant_id === null) return { number: null, sha256: digest, json: null };
      const url = `/admin/v1/tenants/${previous.tenant_id}/invoices/${previous.id}/json`;
      return { number, sha256: digest, json: new TextDecoder().decode(await bytes(url)) };
    },
    lines: () => readLines(tenant, invoice.id),
    days: (line) => slices(line, 'day'),
    hours: (line, day) => slices(line, 'hour', day),
    requests: (line, day, hour) => readRequests(tenant, invoice.id, line, day, hour),
    sha256,
  };
}
