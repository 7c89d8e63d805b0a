/** Sets up and removes the authenticator, and shows recovery codes once. The QR code is drawn in this browser. */
import { Alert, Button, Code, CopyButton, Group, SimpleGrid, Stack, Text } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { QRCodeSVG } from 'qrcode.react';
import { useState } from 'react';

import { type Me, meOptions } from '~/access/rights';
import { api, saveFile, type Schema } from '~/api/client';
import { Confirm, fieldError, Form, FormProblem } from '~/components/forms';
import { Copied, State } from '~/components/values';

import { CodeInput } from '../CodeInput';
import { Section } from '../Section';
import { SecretModal, useHeldOpen } from '~/components/SecretModal';

const QR_PIXELS = 200;

export function SecondFactorSection({ me }: { me: Me }) {
  const queries = useQueryClient();
  const [codes, setCodes] = useState<string[] | null>(null);
  const [removing, { open: askRemoval, close: endRemoval }] = useDisclosure();
  const fresh = () => queries.invalidateQueries({ queryKey: meOptions.queryKey });
  const begin = useMutation({ mutationFn: async () => (await api.POST('/admin/v1/users/me/totp')).data! });
  const renew = useMutation({
    mutationFn: async () => (await api.POST('/admin/v1/users/me/recovery-codes')).data!,
    onSuccess: async (made) => {
      setCodes(made.codes);
      await fresh();
    },
  });
  const remove = useMutation({
    mutationFn: () => api.DELETE('/admin/v1/users/me/totp'),
    onSuccess: async () => {
      endRemoval();
      await fresh();
    },
  });
  const confirmed = async (made: string[]): Promise<void> => {
    begin.reset();
    setCodes(made);
    await fresh();
  };
  return (
    <Section title="Second factor">
      <Group gap="xs">
        <State tone={me.has_second_factor ? 'good' : 'waiting'}>{me.has_second_factor ? 'On' : 'Off'}</State>
        <Text size="sm">
          {me.has_second_factor
            ? `A code is asked for when you sign in. ${me.recovery_codes_left} recovery codes are left.`
            : 'With an authenticator on your phone, a stolen password alone signs nobody in.'}
        </Text>
      </Group>
      <FormProblem error={begin.error ?? renew.error} />
      <Group>
        {me.has_second_factor ? (
          <>
            <Button variant="default" loading={renew.isPending} onClick={() => renew.mutate()}>
              New recovery codes
            </Button>
            <Button variant="default" onClick={askRemoval}>
              Remove the second factor
            </Button>
          </>
        ) : (
          <Button variant="default" loading={begin.isPending} onClick={() => begin.mutate()}>
            Set up an authenticator
          </Button>
        )}
      </Group>
      <SecretModal opened={begin.data !== undefined} onClose={() => begin.reset()} title="Set up an authenticator">
        {begin.data !== undefined && <SetUp authenticator={begin.data} confirmed={confirmed} />}
      </SecretModal>
      <SecretModal opened={codes !== null} onClose={() => setCodes(null)} title="Your recovery codes">
        {codes !== null && <RecoveryCodes codes={codes} close={() => setCodes(null)} />}
      </SecretModal>
      <Confirm
        opened={removing}
        close={endRemoval}
        title="Remove the second factor"
        action="Remove"
        pending={remove.isPending}
        error={remove.error}
        confirm={() => remove.mutate()}
      >
        From then on your password alone signs you in. Your recovery codes are void.
      </Confirm>
    </Section>
  );
}

interface SetUpProps {
  authenticator: Schema<'AuthenticatorObject'>;
  confirmed: (codes: string[]) => Promise<void>;
}

function SetUp({ authenticator, confirmed }: SetUpProps) {
  const [code, setCode] = useState('');
  const confirm = useMutation({
    mutationFn: async (entered: string) =>
      (await api.POST('/admin/v1/users/me/totp/confirm', { body: { code: entered } })).data!,
    onSuccess: ({ codes }) => confirmed(codes),
  });
  return (
    <Form submit={() => confirm.mutate(code)} error={confirm.error} pending={confirm.isPending} action="Confirm">
      <Text size="sm">Scan this with the authenticator of your phone, or type the secret into it.</Text>
      <QRCodeSVG
        value={authenticator.uri}
        size={QR_PIXELS}
        marginSize={4}
        title="The secret as a QR code"
        role="img"
        style={{ alignSelf: 'center' }}
      />
      <Group justify="center">
        <Copied text={authenticator.secret} label="the secret" />
      </Group>
      <CodeInput
        label="The code that it shows"
        value={code}
        error={fieldError(confirm.error, 'code')}
        set={setCode}
        complete={(value) => confirm.mutate(value)}
      />
    </Form>
  );
}

function RecoveryCodes({ codes, close }: { codes: string[]; close: () => void }) {
  useHeldOpen();
  const text = codes.join('\n');
  return (
    <Stack>
      <Alert color="yellow.9" variant="outline" role="note">
        They are shown once. Each is good once, in place of a code of your authenticator. Keep them where you keep
        passwords, not on the phone itself.
      </Alert>
      <SimpleGrid cols={2} spacing="xs" data-secret>
        {codes.map((code) => (
          <Code key={code}>{code}</Code>
        ))}
      </SimpleGrid>
      <Group>
        <CopyButton value={text}>
          {({ copied, copy }) => <Button onClick={copy}>{copied ? 'Copied' : 'Copy all'}</Button>}
        </CopyButton>
        <Button
          variant="default"
          onClick={() => saveFile(new Blob([`${text}\n`], { type: 'text/plain' }), 'turnpike-recovery-codes.txt')}
        >
          Save as a file
        </Button>
        <Button variant="default" onClick={close}>
          I have kept them
        </Button>
      </Group>
    </Stack>
  );
}
