/** Whether single-key shortcuts are on, as the user chose in the account (WCAG 2.1.4). */
import { useLocalStorage } from '@mantine/hooks';

const KEY = 'turnpike.shortcuts';

/** The choice and its setter; on until it is switched off. */
export function useShortcutsOn(): [boolean, (on: boolean) => void] {
  const [choice, setChoice] = useLocalStorage<'on' | 'off'>({
    key: KEY,
    defaultValue: 'on',
    getInitialValueInEffect: false,
  });
  return [choice === 'on', (on) => setChoice(on ? 'on' : 'off')];
}
