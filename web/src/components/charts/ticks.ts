/** Where an axis has its lines: at round numbers. */

const STEPS = [1, 2, 2.5, 5, 10];
const MOST_TICKS = 5;

/** Round numbers from 0 to the first that is `most` or above, of equal distance; at most six. */
export function roundTicks(most: number): number[] {
  if (!(most > 0)) return [0, 1];
  const least = most / MOST_TICKS;
  const exponent = Math.floor(Math.log10(least));
  const step = STEPS.map((each) => round(each, exponent)).find((each) => each >= least)!;
  const count = Math.ceil(most / step);
  // A sum of floats would show as 0.30000000000000004.
  return Array.from({ length: count + 1 }, (_, place) => Number((place * step).toPrecision(12)));
}

function round(step: number, exponent: number): number {
  return Number(`${step}e${exponent}`);
}
