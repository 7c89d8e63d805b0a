/** A chart that is loaded when it is shown first. */
import { Skeleton, Text, VisuallyHidden } from '@mantine/core';
import { lazy, Suspense } from 'react';

import type { StackedBarsProps } from './StackedBars';

const StackedBars = lazy(() => import('./StackedBars'));
const HEIGHT = 280;

/** Stacked bars with their sentence; the caller has the table. */
export function Chart(props: StackedBarsProps) {
  const height = props.height ?? HEIGHT;
  return (
    <div>
      <Suspense fallback={<Skeleton height={height} />}>
        <StackedBars {...props} height={height} />
      </Suspense>
      <VisuallyHidden>{props.sentence}</VisuallyHidden>
      <Text size="xs" c="dimmed">
        All times are UTC. Arrow keys move along the bars once the chart has the focus.
      </Text>
    </div>
  );
}
