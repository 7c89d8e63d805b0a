/** States of payments in people's words, and what the pages of payments share. */
import { Alert, Anchor, NativeSelect, Text } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import type { ReactNode } from 'react';

import type { Schema } from '~/api/client';
import { State } from '~/components/values';

type Tone = 'good' | 'waiting' | 'bad' | 'neutral';
type Shown = readonly [Tone, string];

const TOP_UPS: Record<Schema<'TopUpObject'>['state'], Shown> = {
  created: ['waiting', 'is being asked for'],
  sent: ['waiting', 'waits for the money'],
  granted: ['good', 'paid'],
  needs_customer: ['bad', 'the bank asks for the cardholder'],
  declined: ['bad', 'declined'],
  unknown: ['waiting', 'no answer yet'],
  canceled: ['neutral', 'canceled'],
};
const RECEIPTS: Record<Schema<'ReceiptObject'>['state'], Shown> = {
  applied: ['good', 'applied'],
  unapplied: ['waiting', 'unmatched'],
  returned: ['neutral', 'sent back'],
};
const DISPUTES: Record<Schema<'DisputeObject'>['state'], Shown> = {
  open: ['waiting', 'open'],
  withdrawn: ['bad', 'the bank took the money'],
  won: ['good', 'won'],
  lost: ['bad', 'lost'],
};
const COLLECTIONS: Record<Schema<'CollectionObject'>['state'], Shown> = {
  none: ['neutral', 'not at the provider'],
  queued: ['waiting', 'waits to be pushed'],
  drafted: ['waiting', 'is being pushed'],
  pushed: ['good', 'pushed'],
  skipped: ['neutral', 'not pushed'],
  differs: ['bad', 'differs at the provider'],
  refused: ['bad', 'refused by the provider'],
};
const REMINDERS: Record<Schema<'ReminderObject'>['state'], Shown> = {
  queued: ['waiting', 'waits to be sent'],
  sending: ['waiting', 'is being sent'],
  sent: ['good', 'sent'],
  refused: ['bad', 'refused'],
  unknown: ['bad', 'perhaps sent'],
  canceled: ['neutral', 'not needed'],
};
const AUTOMATIC: Record<Schema<'AutoTopUpObject'>['state'], Shown> = {
  on: ['good', 'on'],
  paused: ['bad', 'paused'],
  off: ['neutral', 'off'],
};

function shown([tone, words]: Shown) {
  return <State tone={tone}>{words}</State>;
}

export const topUpState = (state: keyof typeof TOP_UPS) => shown(TOP_UPS[state]);
export const receiptState = (state: keyof typeof RECEIPTS) => shown(RECEIPTS[state]);
export const disputeState = (state: keyof typeof DISPUTES) => shown(DISPUTES[state]);
export const collectionState = (state: keyof typeof COLLECTIONS) => shown(COLLECTIONS[state]);
export const reminderState = (state: keyof typeof REMINDERS) => shown(REMINDERS[state]);
export const automaticState = (state: keyof typeof AUTOMATIC) => shown(AUTOMATIC[state]);

/** A link to a page of the provider, in a window of its own. */
export function ProviderLink({ url, children }: { url: string; children: ReactNode }) {
  return (
    <Anchor href={url} target="_blank" rel="noreferrer" inherit>
      {children}
    </Anchor>
  );
}

interface Mode {
  provider: string | null;
  livemode: boolean;
  stand_in: boolean;
}

/** Says where no real money moves. */
export function ModeNotice({ mode }: { mode: Mode }) {
  if (mode.provider === null || mode.livemode) return null;
  return (
    <Alert variant="outline" color="yellow.9" role="note">
      <Text fw={700}>{mode.stand_in ? 'Test mode: a fake Stripe' : 'Test mode'}</Text>
      {mode.stand_in
        ? 'A stand-in on the gateway’s machine answers in the place of Stripe. No card is charged, and no money moves.'
        : 'The key is one of the provider’s test mode. No card is charged, and no money moves.'}
    </Alert>
  );
}

/** Who collects, in a word. */
export function providerName({ provider, stand_in }: Mode): string {
  if (provider === null) return 'nobody';
  return stand_in ? `${provider} (fake)` : provider;
}

interface ViewSelectProps<View extends string> {
  views: Record<View, string>;
  value: View;
  set: (view: View) => void;
}

/** Chooses which list is shown. */
export function ViewSelect<View extends string>({ views, value, set }: ViewSelectProps<View>) {
  const options = Object.entries(views) as [View, string][];
  return (
    <NativeSelect
      label="Show"
      w="max-content"
      maw="100%"
      data={options.map(([view, label]) => ({ value: view, label }))}
      value={value}
      onChange={({ currentTarget }) => set(currentTarget.value as View)}
    />
  );
}

/** Reads again whatever shows payments. */
export function useRefreshPayments(): () => void {
  const queries = useQueryClient();
  return () => {
    const money = /payment|reminder|top-up|receipt|dispute|collection|balance|invoice|statement|grants/;
    void queries.invalidateQueries({ predicate: ({ queryKey }) => money.test(String(queryKey[1])) });
  };
}
