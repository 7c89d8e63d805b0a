import type { Schema } from '~/api/client';
import { State } from '~/components/values';

const TONES: Record<string, 'good' | 'bad' | 'waiting'> = { delivered: 'good', failed: 'bad' };

/** How far a delivery is. */
export function DeliveryState({ delivery }: { delivery: Schema<'DeliveryObject'> }) {
  return <State tone={TONES[delivery.status] ?? 'waiting'}>{delivery.status}</State>;
}
