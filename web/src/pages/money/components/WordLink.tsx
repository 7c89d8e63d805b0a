/** A link inside the console, in the text's flow. */
import { Anchor, type AnchorProps } from '@mantine/core';
import { createLink } from '@tanstack/react-router';
import type { ComponentProps } from 'react';

function MantineAnchor(props: AnchorProps & Omit<ComponentProps<'a'>, keyof AnchorProps>) {
  return <Anchor inherit {...props} />;
}

export const WordLink = createLink(MantineAnchor);
