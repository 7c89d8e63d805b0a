/**
 * The calendar of the console. A day, and so "today", is a day of UTC on every page, as it is for budgets, reports and
 * invoices; pages say so. A span of days is [first, end), each written `2026-11-23`.
 */
import { useEffect, useState } from 'react';

const DAY_MS = 86_400_000;
/** Timers may fire early by a little. */
const AFTER_MIDNIGHT_MS = 50;

/** A span of days of UTC; `to` is not in it. */
export interface Days {
  from: string;
  to: string;
}

/** The day of an instant. */
export function dayOf(instant: number | string): string {
  return new Date(instant).toISOString().slice(0, 10);
}

/** The day so many days after a day; before it, if negative. */
export function dayAfter(day: string, days = 1): string {
  return dayOf(Date.parse(day) + days * DAY_MS);
}

/** One day, as a span. */
export function wholeDay(day: string): Days {
  return { from: day, to: dayAfter(day) };
}

/** The month of a day, such as `2026-11`, or the one so many months before it. */
export function monthOf(day: string, back = 0): string {
  return firstOfMonth(day, back).slice(0, 7);
}

/** The first day of the month of a day, or of the one so many months before it. */
export function firstOfMonth(day: string, back = 0): string {
  const date = new Date(day);
  return dayOf(Date.UTC(date.getUTCFullYear(), date.getUTCMonth() - back, 1));
}

/** The first instant of a day, as the API wants it. */
export function startOf(day: string): string {
  return `${day}T00:00:00Z`;
}

/** Today. A page that stays open over midnight shows the next day by itself. */
export function useToday(): string {
  const [today, setToday] = useState(() => dayOf(Date.now()));
  useEffect(() => {
    const left = Date.parse(dayAfter(today)) - Date.now() + AFTER_MIDNIGHT_MS;
    const timer = setTimeout(() => setToday(dayOf(Date.now())), Math.max(left, AFTER_MIDNIGHT_MS));
    return () => clearTimeout(timer);
  }, [today]);
  return today;
}
