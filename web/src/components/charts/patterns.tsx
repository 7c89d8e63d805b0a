/** Fills of bars: a colour of the scheme and a pattern of its own, so that nothing is told by colour alone. */
import classes from './patterns.module.css';

const NAMES = ['cyan', 'orange', 'violet', 'lime', 'pink', 'blue', 'yellow', 'teal', 'red', 'grape', 'gray'] as const;
export const STACK_COLORS = NAMES.length;
const SIZE = 8;

/** Lines and dots over a filled square, by the place of the stack. */
const MARKS = [
  '',
  'M0 8L8 0',
  'M0 0L8 8',
  'M0 4H8',
  'M4 0V8',
  'M0 4H8M4 0V8',
  'M0 8L8 0M0 0L8 8',
  'M2 2H4V4H2Z',
  'M0 2H8M0 6H8',
  'M2 0V8M6 0V8',
  'M4 4H5V5H4Z',
];

/** The patterns, once on the page: `fill="url(#stack-0)"` refers to them. */
export function StackPatterns() {
  return (
    <svg width="0" height="0" className={classes.hidden} aria-hidden focusable="false">
      <defs>
        {NAMES.map((name, place) => (
          <pattern key={name} id={`stack-${place}`} width={SIZE} height={SIZE} patternUnits="userSpaceOnUse">
            <rect width={SIZE} height={SIZE} fill={`var(--mantine-color-${name}-6)`} />
            <path d={MARKS[place]} stroke="var(--mantine-color-body)" strokeWidth={1.5} fill="none" />
          </pattern>
        ))}
      </defs>
    </svg>
  );
}

/** A swatch of a stack, beside its name. */
export function Swatch({ place }: { place: number }) {
  return (
    <svg width="14" height="14" aria-hidden focusable="false">
      <rect width="14" height="14" rx="2" fill={`url(#stack-${place % STACK_COLORS})`} />
    </svg>
  );
}

/** Parts of a whole as one bar; a table beside it has the numbers. `parts` are from 0 to 1. */
export function PartsBar({ parts, label }: { parts: number[]; label: string }) {
  const starts = parts.map((_, place) => parts.slice(0, place).reduce((sum, part) => sum + part, 0));
  return (
    <>
      <StackPatterns />
      <svg className={classes.parts} viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label={label}>
        {parts.map((part, place) => (
          <rect
            key={place}
            x={starts[place]! * 1000}
            width={part * 1000}
            height="24"
            fill={`url(#stack-${place % STACK_COLORS})`}
          />
        ))}
      </svg>
    </>
  );
}
