/** Scrolls to where a page was left, after Back, Forward and reloading. */
import { useElementScrollRestoration, useLocation } from '@tanstack/react-router';
import { useEffect } from 'react';

const GIVEN_UP_MS = 10_000;
const BY_HAND = ['wheel', 'touchmove', 'keydown', 'pointerdown'] as const;

/**
 * The router scrolls once, when the page is drawn; what the page reads is not there yet then. This waits until the page
 * is long enough again, and leaves it alone once somebody uses it.
 */
export function useScrollKept(): void {
  const key = useLocation({ select: ({ state }) => state.__TSR_key });
  const top = useElementScrollRestoration({ getElement: () => window })?.scrollY ?? 0;
  useEffect(() => {
    if (top <= 0) return undefined;
    const watcher = new ResizeObserver(() => {
      const root = document.documentElement;
      if (root.scrollHeight - root.clientHeight < top) return;
      stop();
      window.scrollTo(window.scrollX, top);
    });
    const stop = (): void => {
      watcher.disconnect();
      clearTimeout(timer);
      for (const kind of BY_HAND) removeEventListener(kind, stop);
    };
    const timer = setTimeout(stop, GIVEN_UP_MS);
    for (const kind of BY_HAND) addEventListener(kind, stop, { passive: true });
    watcher.observe(document.body);
    return stop;
    // `top` is asked for once: later it is where the page was scrolled to since
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [key]);
}
