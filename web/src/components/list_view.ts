/** How a list is looked at. It stands in the URL, so that Back, reloading and links show the list as it was left. */
import { useLocation, useNavigate } from '@tanstack/react-router';

import { type Search, text } from '~/app/search';

/** No link makes a page read a list without end. */
const MOST_PAGES = 100;

export interface ListView {
  /** The header of the column that rows are sorted by; with a minus from the greatest. */
  sort?: string;
  /** How many pages of the list are read. */
  pages?: number;
}

/** The view that a search names. */
export function listView(search: Search): ListView {
  const pages = Number(text(search, 'pages'));
  return { sort: text(search, 'sort'), pages: pages > 1 ? Math.min(Math.floor(pages), MOST_PAGES) : undefined };
}

/** The view of the list on this page, and what changes it: the page stays where it is, and Back leaves it. */
export function useListView(): [ListView, (change: ListView) => void] {
  const navigate = useNavigate();
  const view = useLocation({ select: ({ search }) => listView(search), structuralSharing: true });
  const set = (change: ListView): void => {
    const search = ((now: Search) => ({ ...now, ...change })) as never;
    void navigate({ to: '.', search, replace: true, resetScroll: false });
  };
  return [view, set];
}
