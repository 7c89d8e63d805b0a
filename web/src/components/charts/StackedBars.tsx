/**
 * Stacked bars over time, each stack with a pattern beside its colour. Loaded when it is shown first, since Recharts is
 * large; the caller has the same figures in a table, and a sentence for who cannot see it.
 */
import { Box, Text } from '@mantine/core';
import { Bar, BarChart, CartesianGrid, Legend, ResponsiveContainer, Tooltip, XAxis, YAxis } from 'recharts';

import { STACK_COLORS, StackPatterns } from './patterns';
import { roundTicks } from './ticks';

export interface StackedBarsProps {
  labels: string[];
  stacks: { name: string; heights: number[] }[];
  /** What the chart shows, in one sentence. */
  sentence: string;
  /** How many buckets from the first on are complete; later ones are drawn lighter. */
  complete: number;
  /** What the axis counts, such as `EUR` or `tokens`. */
  unit: string;
  /** The figure of a stack in a bucket as people read it, exactly. */
  figure: (stack: number, bucket: number) => string;
  height?: number;
}

export default function StackedBars(props: StackedBarsProps) {
  const { labels, stacks, sentence, complete, unit, figure, height = 280 } = props;
  const ticks = roundTicks(Math.max(0, ...labels.map((_, bucket) => heightOfBar(stacks, bucket))));
  const data = labels.map((label, bucket) => ({
    label,
    bucket,
    ...Object.fromEntries(stacks.map((stack, place) => [`s${place}`, stack.heights[bucket]])),
  }));
  return (
    <Box role="figure" aria-label={sentence} h={height + UNIT_HEIGHT}>
      <StackPatterns />
      <Text size="xs" c="dimmed" h={UNIT_HEIGHT} aria-hidden>
        {unit}
      </Text>
      <ResponsiveContainer width="100%" height={height}>
        <BarChart data={data} margin={{ top: 8, right: 8, bottom: 0, left: 0 }} barCategoryGap="12%">
          <CartesianGrid vertical={false} stroke="var(--mantine-color-default-border)" />
          <XAxis dataKey="label" tick={TICK} minTickGap={16} stroke="var(--mantine-color-dimmed)" />
          <YAxis
            tick={TICK}
            width={64}
            stroke="var(--mantine-color-dimmed)"
            tickFormatter={axisNumber}
            ticks={ticks}
            domain={[0, ticks.at(-1)!]}
          />
          <Tooltip
            isAnimationActive={false}
            cursor={{ fill: 'var(--mantine-color-default-hover)' }}
            contentStyle={{
              background: 'var(--mantine-color-body)',
              borderColor: 'var(--mantine-color-default-border)',
              color: 'var(--mantine-color-text)',
            }}
            itemStyle={{ color: 'var(--mantine-color-text)' }}
            formatter={(_, name, item) => [
              figure(Number(String(item.dataKey).slice(1)), (item.payload as { bucket: number }).bucket),
              String(name),
            ]}
            labelFormatter={(label, items) => {
              const bucket = (items[0]?.payload as { bucket?: number } | undefined)?.bucket ?? 0;
              return bucket < complete ? String(label) : `${String(label)} (not complete yet)`;
            }}
          />
          <Legend formatter={(name) => <span style={{ color: 'var(--mantine-color-text)' }}>{String(name)}</span>} />
          {stacks.map((stack, place) => (
            <Bar
              key={stack.name}
              dataKey={`s${place}`}
              name={stack.name}
              stackId="all"
              fill={`url(#stack-${place % STACK_COLORS})`}
              stroke="var(--mantine-color-body)"
              strokeWidth={0.5}
              isAnimationActive={false}
            />
          ))}
        </BarChart>
      </ResponsiveContainer>
    </Box>
  );
}

const UNIT_HEIGHT = 18;
const TICK = { fontSize: 12, fill: 'var(--mantine-color-dimmed)' };

/** A number of the axis, short. Amounts are exact in the tooltip and the table. */
function axisNumber(value: number): string {
  return new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 }).format(value);
}

function heightOfBar(stacks: StackedBarsProps['stacks'], bucket: number): number {
  return stacks.reduce((sum, stack) => sum + stack.heights[bucket]!, 0);
}
