/**
 * "Export and verify": the bundle is downloaded while the browser computes everything in it again. Where the browser has
 * no SHA-256 (neither HTTPS nor localhost), the server verifies, and the panel says so.
 */
import { Alert, Button, Group, List, Progress, Stack, Text, Title } from '@mantine/core';
import { useInterval } from '@mantine/hooks';
import { IconCircleCheck, IconCircleX } from '@tabler/icons-react';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';

import { api, download, saveFile, type Schema } from '~/api/client';
import { FormProblem } from '~/components/forms';
import { displayCount } from '~/money/decimal';
import { displayDuration } from '~/time/instants';

import { invoiceSource } from './invoice_source';
import type { Check } from './verification/checks';
import { type Progress as Made, verify } from './verification/verify';

interface VerifyPanelProps {
  tenant: string;
  invoice: Schema<'InvoiceDetails'>;
}

type Who = 'browser' | 'server';

export function VerifyPanel({ tenant, invoice }: VerifyPanelProps) {
  const [checks, setChecks] = useState<Check[]>([]);
  const [made, setMade] = useState<Made>({ doing: '', made: 0, of: 0 });
  const who: Who = crypto.subtle === undefined ? 'server' : 'browser';
  const add = (check: Check): void => setChecks((before) => [...before, check]);
  const run = useMutation({
    mutationFn: async (deep: boolean) => {
      setChecks([]);
      setMade({ doing: 'The server verifies', made: 0, of: 0 });
      if (who === 'browser') {
        const { bundle } = await verify(invoiceSource(tenant, invoice), deep, add, setMade);
        if (!deep) saveFile(new Blob([bundle.slice()], { type: 'application/zip' }), `${fileName(invoice)}.zip`);
        return;
      }
      const at = `/admin/v1/tenants/${encodeURIComponent(tenant)}/invoices/${invoice.id}`;
      if (!deep) await download(`${at}/bundle`);
      const params = { path: { tenant, invoice: invoice.id } };
      const answer = (await api.GET('/admin/v1/tenants/{tenant}/invoices/{invoice}/verification', { params })).data!;
      for (const check of answer.checks) add({ ...check, difference: check.difference ?? undefined });
    },
  });
  const wrong = checks.filter((check) => check.difference !== undefined);
  return (
    <Stack component="section" aria-labelledby="verification" gap="xs">
      <Group>
        <Title order={2} id="verification">
          Verification
        </Title>
        <Button onClick={() => run.mutate(false)} loading={run.isPending && !run.variables}>
          Export and verify
        </Button>
        <Button variant="default" onClick={() => run.mutate(true)} loading={run.isPending && run.variables}>
          Verify every request
        </Button>
      </Group>
      <Text size="sm" c="dimmed">
        {who === 'browser'
          ? 'Your browser downloads all forms of the document and computes hashes, sums and tax again.'
          : 'This page was not loaded over HTTPS, so your browser has no SHA-256: the server verifies instead.'}
      </Text>
      {run.isPending && <Going made={made} since={run.submittedAt} />}
      <FormProblem error={run.error} />
      <div aria-live="polite">
        {run.isSuccess && <Verdict wrong={wrong} count={checks.length} who={who} />}
        <List listStyleType="none" spacing={4} mt="xs" aria-label="Checks">
          {checks.map((check) => (
            <CheckItem key={check.name} check={check} />
          ))}
        </List>
      </div>
    </Stack>
  );
}

function Verdict({ wrong, count, who }: { wrong: readonly Check[]; count: number; who: Who }) {
  const [first] = wrong;
  if (first === undefined) {
    return (
      <Alert
        variant="default"
        role="status"
        title="Verified"
        icon={<IconCircleCheck color="var(--mantine-color-teal-text)" aria-hidden />}
        styles={{ root: { borderColor: 'var(--mantine-color-teal-text)' } }}
        data-verified
      >
        All {count} checks hold, as computed by {who === 'browser' ? 'this browser' : 'the server'}.
      </Alert>
    );
  }
  return (
    <Alert color="red" variant="outline" title="Not verified" icon={<IconCircleX aria-hidden />} role="alert">
      {wrong.length} of {count} checks failed. The first difference: {first.name}: {first.difference}
    </Alert>
  );
}

/** How far it is; read out when what is done changes, not with every part. */
function Going({ made, since }: { made: Made; since: number }) {
  const [now, setNow] = useState(since);
  useInterval(() => setNow(Date.now()), 1_000, { autoInvoke: true });
  const known = made.of > 0;
  return (
    <div>
      <Text size="sm">
        <span role="status">{made.doing}</span>
        {known && `, ${displayCount(made.made)} of ${displayCount(made.of)}`}; for{' '}
        {displayDuration(Math.max(0, now - since))} so far. It may take half a minute.
      </Text>
      <Progress
        value={known ? (100 * made.made) / made.of : 100}
        animated={!known}
        striped={!known}
        color="cyan.9"
        aria-label={known ? made.doing : `${made.doing}: nobody knows for how long yet`}
      />
    </div>
  );
}

function CheckItem({ check }: { check: Check }) {
  const holds = check.difference === undefined;
  const Icon = holds ? IconCircleCheck : IconCircleX;
  return (
    <List.Item icon={<Icon size={18} color={`var(--mantine-color-${holds ? 'teal' : 'red'}-text)`} aria-hidden />}>
      <Text size="sm">
        <strong>
          {check.name}: {holds ? 'correct' : 'wrong'}.
        </strong>{' '}
        {check.about} {check.difference}
      </Text>
    </List.Item>
  );
}

function fileName(invoice: Schema<'InvoiceDetails'>): string {
  return (invoice.number ?? `draft-${invoice.period}`).replace(/[^A-Za-z0-9._-]/g, '_');
}
