/** Instants as the API writes them (RFC 3339, UTC), for people: always UTC, and never more precise than asked for. */

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** `2026-11-23 05:33:07 UTC`; with `seconds: false` without the seconds. */
export function displayInstant(text: string, { seconds = true } = {}): string {
  const iso = new Date(text).toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, seconds ? 19 : 16)} UTC`;
}

/** `2026-11-23` */
export function displayDay(text: string): string {
  return new Date(text).toISOString().slice(0, 10);
}

/** How long ago or ahead an instant is, roughly: `3 min ago`, `in 2 d`. */
export function displayDistance(text: string, now: number): string {
  const distance = new Date(text).getTime() - now;
  const size = displayDuration(Math.abs(distance));
  return distance <= 0 ? `${size} ago` : `in ${size}`;
}

/** A duration in its largest unit, rounded down: `850 ms`, `12 s`, `3 min`, `5 h`, `2 d`. */
export function displayDuration(milliseconds: number): string {
  if (milliseconds < SECOND) return `${Math.floor(milliseconds)} ms`;
  if (milliseconds < MINUTE) return `${Math.floor(milliseconds / SECOND)} s`;
  if (milliseconds < HOUR) return `${Math.floor(milliseconds / MINUTE)} min`;
  if (milliseconds < DAY) return `${Math.floor(milliseconds / HOUR)} h`;
  return `${Math.floor(milliseconds / DAY)} d`;
}

/** Microseconds as milliseconds with three places, exactly: `12.345 ms`. */
export function displayMicroseconds(microseconds: number): string {
  return `${(microseconds / 1_000).toFixed(3)} ms`;
}
