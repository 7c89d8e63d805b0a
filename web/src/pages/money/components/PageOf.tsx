/** A page about one object: until that is read, and where it cannot be, it still has its heading. */
import type { ComponentProps, ReactNode } from 'react';

import { Loaded } from '~/components/Loaded';
import { Page } from '~/components/Page';

interface PageOfProps<Data> {
  query: ComponentProps<typeof Loaded<Data>>['query'];
  /** What it is about, in a word: "Invoice". */
  title: string;
  children: (data: Data) => ReactNode;
}

export function PageOf<Data>({ query, title, children }: PageOfProps<Data>) {
  const shown = (
    <Loaded query={query} what={`the ${title.toLowerCase()}`} height={480}>
      {children}
    </Loaded>
  );
  return query.data === undefined ? <Page title={title}>{shown}</Page> : shown;
}
