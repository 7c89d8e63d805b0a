/** A dialog that stays open while it shows a secret: neither Esc nor a click beside it closes it, its own button alone does. */
import { Modal, type ModalProps } from '@mantine/core';
import { createContext, useContext, useEffect, useState } from 'react';

const Hold = createContext<(holds: boolean) => void>(() => undefined);

export function SecretModal(props: ModalProps) {
  const [holds, setHolds] = useState(false);
  return (
    <Hold value={setHolds}>
      <Modal closeOnEscape={!holds} closeOnClickOutside={!holds} withCloseButton={!holds} {...props} />
    </Hold>
  );
}

/** Keeps the dialog around it open: while a secret is shown, or on its way. */
export function useHeldOpen(held = true): void {
  const hold = useContext(Hold);
  useEffect(() => {
    hold(held);
    return () => hold(false);
  }, [hold, held]);
}
