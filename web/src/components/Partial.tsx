/** Says above a page that some of its parts could not be loaded: what is shown is not all. */
import { type QueryCache, useQueryClient } from '@tanstack/react-query';
import { useCallback, useSyncExternalStore } from 'react';

import { Remark } from './Remark';

/** What the frame reads, whatever page is shown. */
const FRAME = ['/admin/v1/users/me', '/admin/v1/tenants', '/admin/v1/tenants/{tenant}', '/admin/v1/session'];

/** How many parts of the page are shown, and how many there are; `3/4`. Parts that are loading still count as shown. */
export function shownParts(cache: Pick<QueryCache, 'getAll'>): string {
  const parts = cache
    .getAll()
    .filter((query) => query.getObserversCount() > 0 && !FRAME.includes(String(query.queryKey[1])));
  const shown = parts.filter((query) => query.state.data !== undefined || query.state.status !== 'error');
  return `${shown.length}/${parts.length}`;
}

export function Partial() {
  const cache = useQueryClient().getQueryCache();
  const subscribe = useCallback((changed: () => void) => cache.subscribe(() => queueMicrotask(changed)), [cache]);
  const [shown, all] = useSyncExternalStore(subscribe, () => shownParts(cache)).split('/');
  if (shown === all) return null;
  return (
    <Remark>
      <span role="status">
        {shown} of {all} parts are loaded. What is missing says why; nothing of it is exported.
      </span>
    </Remark>
  );
}
