/** How far a batch is: the shares of its lines by how they ended, and what is said of them. */
import type { Schema } from '~/api/client';
import { displayCount } from '~/money/decimal';

export type Batch = Schema<'TenantBatchObject'>;
type Counts = Batch['counts'];

export interface Part {
  name: string;
  lines: number;
  /** Of the whole, in per cent. */
  share: number;
  color: string;
}

const PARTS = [
  { name: 'completed', color: 'teal.9', of: (counts: Counts) => counts.completed },
  { name: 'failed', color: 'red.9', of: (counts: Counts) => counts.failed },
  { name: 'not run', color: 'gray.6', of: (counts: Counts) => counts.cancelled + counts.expired },
];

/** The parts of a batch's bar that are there. */
export function partsOf(counts: Counts): Part[] {
  return PARTS.map(({ name, color, of }) => ({
    name,
    color,
    lines: of(counts),
    share: counts.total === 0 ? 0 : (of(counts) / counts.total) * 100,
  })).filter((part) => part.lines > 0);
}

/** How many lines have ended, in words. */
export function progressText(counts: Counts): string {
  if (counts.total === 0) return 'no lines yet';
  const ended = counts.total - counts.left;
  const failed = counts.failed > 0 ? `, ${displayCount(counts.failed)} failed` : '';
  return `${displayCount(ended)} of ${displayCount(counts.total)}${failed}`;
}

/** Whether anything of a batch still changes. */
export function runs(batch: Pick<Batch, 'ended_at'>): boolean {
  return batch.ended_at === null;
}

const TONES: Record<Batch['status'], 'good' | 'waiting' | 'bad' | 'neutral'> = {
  validating: 'waiting',
  in_progress: 'waiting',
  finalizing: 'waiting',
  cancelling: 'waiting',
  completed: 'good',
  failed: 'bad',
  expired: 'bad',
  cancelled: 'neutral',
};

/** The tone of a batch's state. */
export function toneOf(status: Batch['status']): 'good' | 'waiting' | 'bad' | 'neutral' {
  return TONES[status];
}

/** Bytes for the eye: in the unit in which they have few digits. */
export function displayBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)}\u00a0${units[unit]}`;
}
