/**
 * Single-key shortcuts of every page: `/` the filter, `j` and `k` the rows of its table, `Enter` opens a row, `Esc`
 * leaves, `g` and a letter goes to a page, `?` lists them. They rest while somebody types or a dialog is open.
 */
import { Kbd, Modal, Table, Text } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { Link, useNavigate } from '@tanstack/react-router';
import { useEffect } from 'react';

import type { Group } from '../navigation';
import { type Jump, jumpsTo, meaningOf, rowAfter } from './keys';
import { useShortcutsOn } from './setting';

const AFTER_G_MS = 1_500;
const PAGE = '#page';
const FILTER = '[data-filter], input[type="search"]';
const ROWS = 'tbody > tr';
const ALL = [
  ['/', 'To the filter of the page'],
  ['j', 'Next row'],
  ['k', 'Previous row'],
  ['Enter', 'Open the row'],
  ['Esc', 'Leave the row or the filter; close a dialog'],
  ['?', 'This list'],
] as const;

interface ShortcutsProps {
  /** The pages that the user may see. */
  groups: readonly Group[];
  /** The name of the chosen tenant, if there is one. */
  tenant: string | undefined;
}

export function Shortcuts({ groups, tenant }: ShortcutsProps) {
  const [on] = useShortcutsOn();
  const [listed, { open, close }] = useDisclosure();
  const navigate = useNavigate();
  useEffect(() => {
    if (!on) return undefined;
    let wentAt = -Infinity;
    const press = (event: KeyboardEvent): void => {
      const afterG = event.timeStamp - wentAt < AFTER_G_MS;
      const meaning = meaningOf(event, afterG);
      wentAt = -Infinity;
      if (event.defaultPrevented || meaning === null || document.querySelector('[role="dialog"]') !== null) return;
      if (isTyping(event.target)) {
        if (meaning === 'leave' && event.target instanceof HTMLElement) event.target.blur();
        return;
      }
      if (typeof meaning === 'object') {
        const jump = jumpsTo(groups).find(({ letter }) => letter === meaning.letter);
        if (jump === undefined) return;
        event.preventDefault();
        void navigate({ to: pathOf(jump, tenant) });
      } else if (meaning === 'go') wentAt = event.timeStamp;
      else if (meaning === 'list') open();
      else if (act(meaning)) event.preventDefault();
    };
    document.addEventListener('keydown', press);
    return () => document.removeEventListener('keydown', press);
  }, [on, groups, tenant, navigate, open]);
  return (
    <Modal opened={listed} onClose={close} title="Keyboard shortcuts">
      <Table verticalSpacing={4} withRowBorders={false} aria-label="Keyboard shortcuts">
        <Table.Tbody>
          {ALL.map(([key, what]) => (
            <Row key={key} keys={[key]} what={what} />
          ))}
          {jumpsTo(groups).map((jump) => (
            <Row key={jump.letter} keys={['g', jump.letter]} what={jump.page.label} />
          ))}
        </Table.Tbody>
      </Table>
      <Text size="sm" mt="sm">
        They can be switched off in{' '}
        <Link to={'/account' as '/'} onClick={close}>
          your account
        </Link>
        .
      </Text>
    </Modal>
  );
}

function Row({ keys, what }: { keys: string[]; what: string }) {
  return (
    <Table.Tr>
      <Table.Td w={90}>
        {keys.map((key) => (
          <Kbd key={key} mr={4}>
            {key}
          </Kbd>
        ))}
      </Table.Td>
      <Table.Td>{what}</Table.Td>
    </Table.Tr>
  );
}

function pathOf({ page }: Jump, tenant: string | undefined): string {
  return page.to.replace('$tenant', tenant ?? '');
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.closest('input, textarea, select, [contenteditable="true"]') !== null;
}

/** Do what acts within the page. Whether there was anything to do. */
function act(action: 'filter' | 'next' | 'previous' | 'open' | 'leave'): boolean {
  const page = document.querySelector(PAGE);
  if (page === null) return false;
  if (action === 'filter') {
    const filter = page.querySelector<HTMLElement>(FILTER);
    filter?.focus();
    return filter !== null;
  }
  const rows = [...page.querySelectorAll<HTMLElement>(ROWS)];
  const focused = document.activeElement;
  const place = rows.findIndex((row) => row.contains(focused));
  if (action === 'next' || action === 'previous') {
    const row = rows[rowAfter(place, rows.length, action)];
    if (row === undefined) return false;
    row.tabIndex = -1;
    row.focus();
    return true;
  }
  if (place < 0 || focused !== rows[place]) return false; // a button or link in a row has an Enter of its own
  if (action === 'leave') {
    rows[place]!.blur();
    return true;
  }
  const first = rows[place]!.querySelector<HTMLElement>('a[href], button');
  first?.click();
  return first !== null;
}
