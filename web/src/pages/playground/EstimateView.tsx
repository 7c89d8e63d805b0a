/** What a question would cost if it were sent now. */
import type { Schema } from '~/api/client';
import { type Fact, Facts } from '~/components/Facts';
import { Money } from '~/components/values';
import { displayCount } from '~/money/decimal';

export function EstimateView({ estimate, lane }: { estimate: Schema<'EstimateObject'>; lane: string }) {
  const { input, currency } = estimate;
  const bound = estimate.lanes[lane]?.max_cost;
  const others = Object.entries(estimate.lanes).filter(([name]) => name !== lane);
  const facts: Fact[] = [
    {
      name: `Most that it can cost, ${lane}`,
      value: bound === undefined ? 'no price' : <Money amount={bound} currency={currency} places={6} />,
      about: others.map(([name, one]) => (
        <div key={name}>
          {name}: <Money amount={one.max_cost} currency={currency} places={6} />
        </div>
      )),
    },
    { name: 'Prompt tokens', value: displayCount(input.tokens), about: `${displayCount(input.uncached)} uncached` },
    { name: 'Read from the cache', value: displayCount(sum(input.read)), about: byClass(input.read) },
    { name: 'Written to the cache', value: displayCount(sum(input.write)), about: byClass(input.write) },
    { name: 'Most output tokens', value: displayCount(estimate.max_output_tokens) },
  ];
  return <Facts label="Estimate" facts={facts} />;
}

function sum(classes: Record<string, number>): number {
  return Object.values(classes).reduce((total, count) => total + count, 0);
}

function byClass(classes: Record<string, number>): string | undefined {
  const entries = Object.entries(classes);
  return entries.length === 0 ? undefined : entries.map(([one, count]) => `${one}: ${displayCount(count)}`).join(', ');
}
