/** Where each microsecond of a request went: bars that can be walked with Tab, and the same as a table. */
import { Alert, Group, SegmentedControl, Stack, Text } from '@mantine/core';
import { useState } from 'react';

import { type Column, DataTable } from '~/components/DataTable';
import { Money } from '~/components/values';
import { displayCount } from '~/money/decimal';
import { displayMicroseconds } from '~/time/instants';

import { addsUp, PARTIES, type ShownBar, shownBars, summary, type Waterfall } from './waterfall';
import styles from './waterfall.module.css';

const FORMS = [
  { value: 'bars', label: 'Bars' },
  { value: 'table', label: 'Table' },
];

export function WaterfallChart({ waterfall }: { waterfall: Waterfall }) {
  const [form, setForm] = useState('bars');
  if (waterfall.recorded === 'none') {
    return (
      <Alert variant="outline" color="gray" title="Its stages are not known">
        {waterfall.why}
      </Alert>
    );
  }
  const bars = shownBars(waterfall);
  return (
    <Stack gap="xs">
      <Group justify="space-between">
        <Text size="sm">
          {summary(waterfall)}
          {waterfall.first_token_us !== null &&
            ` The first token came after ${displayMicroseconds(waterfall.first_token_us)}.`}
          {waterfall.recorded === 'running' && ' It still runs.'}
        </Text>
        <SegmentedControl size="xs" aria-label="Show the waterfall as" data={FORMS} value={form} onChange={setForm} />
      </Group>
      {form === 'bars' ? <Bars bars={bars} /> : <StageTable bars={bars} waterfall={waterfall} />}
      <Legend bars={bars} />
      <Text size="xs" c="dimmed">
        {addsUp(waterfall)
          ? 'The bars add up to the wall time, to the microsecond, and their costs to that of the request.'
          : 'These bars do not add up: report this with the id of the request.'}
      </Text>
    </Stack>
  );
}

function Bars({ bars }: { bars: ShownBar[] }) {
  const [chosen, setChosen] = useState<number | null>(null);
  return (
    <>
      <ol className={styles.bars} aria-label="Stages of the request">
        {bars.map((shown, index) => (
          <li
            key={shown.key}
            className={styles.row}
            tabIndex={0}
            aria-label={shown.says}
            onFocus={() => setChosen(index)}
            onMouseEnter={() => setChosen(index)}
          >
            <Text size="sm" aria-hidden>
              {shown.label}
              {(shown.bar.attempt ?? 1) > 1 && ` (attempt ${shown.bar.attempt})`}
            </Text>
            <div className={styles.track} aria-hidden>
              <div
                className={`${styles.bar} ${styles[shown.party]}`}
                style={{ left: `${shown.left}%`, width: `${shown.width}%` }}
              />
              {shown.parts.map((part) => (
                <div
                  key={part.left}
                  className={styles.part}
                  title={part.label}
                  style={{ left: `${part.left}%`, width: `${part.width}%` }}
                />
              ))}
            </div>
            <Text size="sm" className="numeric" aria-hidden>
              {displayMicroseconds(shown.bar.duration_us)}
            </Text>
          </li>
        ))}
      </ol>
      <Text size="sm" mih="2.8em" aria-hidden>
        {chosen === null ? 'Choose a bar to read what took its time.' : bars[chosen]?.says}
      </Text>
    </>
  );
}

function Legend({ bars }: { bars: ShownBar[] }) {
  const parties = PARTIES.filter((party) => bars.some((shown) => shown.party === party));
  return (
    <Group gap="md" aria-hidden>
      {parties.map((party) => (
        <Text key={party} size="xs" c="dimmed">
          <span className={`${styles.swatch} ${styles[party]}`} />
          {party}
        </Text>
      ))}
    </Group>
  );
}

function StageTable({ bars, waterfall }: { bars: ShownBar[]; waterfall: Waterfall }) {
  const currency = waterfall.currency ?? undefined;
  const columns: Column<ShownBar>[] = [
    { header: 'Stage', cell: (shown) => shown.label, total: 'Wall time' },
    { header: 'Attempt', cell: (shown) => shown.bar.attempt ?? '–', numeric: true },
    { header: 'From', cell: (shown) => displayMicroseconds(shown.bar.start_us), numeric: true },
    {
      header: 'Took',
      cell: (shown) => displayMicroseconds(shown.bar.duration_us),
      numeric: true,
      total: displayMicroseconds(waterfall.wall_us),
    },
    {
      header: 'Tokens',
      cell: (shown) => (shown.bar.tokens === null ? '–' : displayCount(shown.bar.tokens)),
      numeric: true,
    },
    {
      header: 'Cost',
      cell: (shown) => (shown.bar.cost === null ? '–' : <Money amount={shown.bar.cost} places={6} />),
      numeric: true,
      total: waterfall.cost === null ? '–' : <Money amount={waterfall.cost} currency={currency} places={6} />,
    },
    { header: 'What took the time', cell: (shown) => shown.bar.cause },
  ];
  return (
    <DataTable
      caption="Stages of the request"
      columns={columns}
      rows={bars}
      rowKey={(shown) => shown.key}
      empty="No stage has ended yet."
    />
  );
}
