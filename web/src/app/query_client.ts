import { MutationCache, QueryCache, QueryClient } from '@tanstack/react-query';

import { asProblem } from '~/api/problem';

const FRESH_MS = 5_000;
const POLL_MS = 15_000;
const POLL_FAILED_MS = 3_000;
const KEPT_MS = 30 * 60_000;

/**
 * Data on screen is asked for again every 15 seconds, and every 3 while the gateway does not answer: a page is fresh
 * again by itself. What was last read stays meanwhile; `Loaded` shows its age.
 */
export function makeQueryClient(signedOut: () => void): QueryClient {
  const onError = (error: unknown): void => {
    const { status, code } = asProblem(error);
    if (status === 401 && code === 'not_signed_in') signedOut();
  };
  return new QueryClient({
    queryCache: new QueryCache({ onError }),
    mutationCache: new MutationCache({ onError }),
    defaultOptions: {
      queries: {
        staleTime: FRESH_MS,
        gcTime: KEPT_MS,
        retry: false,
        networkMode: 'always',
        refetchOnWindowFocus: true,
        refetchInterval: (query) => {
          const { error } = query.state;
          if (error !== null && !asProblem(error).transient) return false;
          return error === null ? POLL_MS : POLL_FAILED_MS;
        },
      },
      mutations: { networkMode: 'always' },
    },
  });
}
