import { renderToStaticMarkup } from 'react-dom/server';
import { expect, test } from 'vitest';

import { Words } from './values';

const spans = (text: string): string[] =>
  [...renderToStaticMarkup(<Words text={text} />).matchAll(/<span class="unbroken">(.*?)<\/span>/g)].map(
    (each) => each[1]!,
  );

test('no line breaks inside a date, an address or the number of a document', () => {
  expect(spans('payment of DEMO-2026-000001, DEMO-CN-2026-000001')).toEqual([
    'DEMO-2026-000001',
    'DEMO-CN-2026-000001',
  ]);
  expect(spans('Terms from 2026-12 on, by ann.keller@turnpike.example until 2026-12-31.')).toEqual([
    '2026-12',
    'ann.keller@turnpike.example',
    '2026-12-31',
  ]);
});

test('what is neither stays as it is', () => {
  expect(spans('meridian-70b, 1 @ 2, demo-2026-12345, 12-31')).toEqual([]);
  expect(renderToStaticMarkup(<Words text="a 2026-12 b" />)).toBe('a <span class="unbroken">2026-12</span> b');
});
