/** Terms as people write them, and as the API has them. Nothing passes through a float. */
import type { Schema } from '~/api/client';
import { Problem } from '~/api/problem';

type Step = Schema<'StepObject'>;

const PERCENT = /^(\d{1,3})(?:\.(\d{1,2}))?$/;
const STEP = /^(?:up to\s+(\d{1,18})|rest)\s*=\s*(\S+)$/i;

/** Hundredths of a percent of a text such as `12.5`, of a form's field. Throws Problem for another text. */
export function basisPoints(percent: string, field = ''): number {
  const match = PERCENT.exec(percent.trim());
  if (match === null) throw Problem.at(field, `“${percent}” is no percentage such as 12.5.`);
  return Number(match[1]! + (match[2] ?? '').padEnd(2, '0'));
}

/** A number of hundredths of a percent as a percentage: 1250 is `12.5`. */
export function percentOf(points: number): string {
  const digits = String(points).padStart(3, '0');
  return `${digits.slice(0, -2)}.${digits.slice(-2)}`.replace(/\.?0+$/, '') || '0';
}

/** Steps of rows such as `up to 1000000 = 0.50` and `rest = 0.40`. Throws Problem for another row. */
export function parseSteps(text: string, field = ''): Step[] {
  return text
    .split('\n')
    .filter((row) => row.trim() !== '')
    .map((row) => {
      const match = STEP.exec(row.trim());
      if (match === null) throw Problem.at(field, `“${row.trim()}” is no step such as: up to 1000000 = 0.50`);
      return { price: match[2]!, up_to: match[1] === undefined ? null : Number(match[1]) };
    });
}

/** The rows of steps: the inverse of `parseSteps`. */
export function formatSteps(steps: readonly Step[]): string {
  return steps
    .map(
      (step) => `${step.up_to === null || step.up_to === undefined ? 'rest' : `up to ${step.up_to}`} = ${step.price}`,
    )
    .join('\n');
}

/** Names separated by commas or spaces. */
export function namesOf(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}
