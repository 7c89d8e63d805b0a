/** Single values as every page shows them: money, instants, ids, states. */
import { ActionIcon, Code, CopyButton, Group, Tooltip } from '@mantine/core';
import { IconCheck, IconCopy } from '@tabler/icons-react';

import { useState } from 'react';

import { displayAmount } from '~/money/decimal';
import { displayDistance, displayInstant } from '~/time/instants';

const WHOLE = /((?<![\w-])\d{4}-\d{2}(?:-\d{2})?(?![\w-])|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|[A-Z]{2,}(?:-[A-Z\d]+)*-\d+)/;

/** A text whose dates, e-mail addresses and numbers of documents are read, and copied, in one piece: no line breaks inside of them. */
export function Words({ text }: { text: string }) {
  return text.split(WHOLE).map((part, place) =>
    place % 2 === 0 ? (
      part
    ) : (
      <span key={place} className="unbroken">
        {part}
      </span>
    ),
  );
}

interface MoneyProps {
  amount: string;
  currency?: string;
  /** How many decimals are shown; with `exact` as many as it has. */
  places?: number | 'exact';
}

/** An amount of money, rounded for the eye to two decimals; the exact amount is its title. */
export function Money({ amount, currency, places = 2 }: MoneyProps) {
  const unit = currency === undefined ? '' : `\u00a0${currency}`;
  return (
    <data value={amount} title={places === 'exact' ? undefined : `${amount}${unit}`} className="numeric">
      {displayAmount(amount, places === 'exact' ? undefined : places)}
      {unit}
    </data>
  );
}

/** An instant in UTC; with `distance` how far away it is, and the instant as its title. */
export function Instant({ at, distance = false }: { at: string | null; distance?: boolean }) {
  const [now] = useState(() => Date.now());
  if (at === null) return <>–</>;
  const full = displayInstant(at);
  const [day, time] = full.split(/ (.*)/, 2);
  return (
    <time dateTime={at} title={distance ? full : undefined}>
      {distance ? (
        displayDistance(at, now)
      ) : (
        <>
          <span className="unbroken">{day}</span> <span className="unbroken">{time}</span>
        </>
      )}
    </time>
  );
}

/** An id or another text that people copy. */
export function Copied({ text, label }: { text: string; label?: string }) {
  return (
    <Group gap={4} wrap="nowrap" display="inline-flex">
      <Code className="wraps">{text}</Code>
      <CopyButton value={text}>
        {({ copied, copy }) => (
          <Tooltip label={copied ? 'Copied' : 'Copy'}>
            <ActionIcon size="sm" variant="subtle" onClick={copy} aria-label={`Copy ${label ?? text}`}>
              {copied ? <IconCheck size={14} aria-hidden /> : <IconCopy size={14} aria-hidden />}
            </ActionIcon>
          </Tooltip>
        )}
      </CopyButton>
    </Group>
  );
}

/** A state in a word, in the colour of text; the colour of its dot only repeats it. Plain: a list has a thousand. */
export function State({ tone, children }: { tone: 'good' | 'waiting' | 'bad' | 'neutral'; children: string }) {
  return <span className={`state ${tone}`}>{children}</span>;
}
