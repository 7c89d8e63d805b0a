/** The question as a program would send it, with a key of the project in the environment. */
import { Button, Code, CopyButton, Group, Paper, SegmentedControl, Stack, Title } from '@mantine/core';
import { useState } from 'react';

import { asCurl, asPython, type Body } from './body';

const LANGUAGES = { curl: asCurl, Python: asPython };
type Language = keyof typeof LANGUAGES;

export function Programs({ body }: { body: Body }) {
  const [language, setLanguage] = useState<Language>('curl');
  const text = LANGUAGES[language](location.origin, body);
  return (
    <Paper withBorder p="md" component="section" aria-label="As a program">
      <Stack gap="sm">
        <Group justify="space-between">
          <Title order={2} size="h4">
            As a program
          </Title>
          <Group gap="xs">
            <SegmentedControl
              size="xs"
              aria-label="Language"
              data={Object.keys(LANGUAGES).map((name) => ({ value: name, label: `as ${name}` }))}
              value={language}
              onChange={(value) => setLanguage(value as Language)}
            />
            <CopyButton value={text}>
              {({ copied, copy }) => (
                <Button size="xs" variant="default" onClick={copy}>
                  {copied ? 'Copied' : 'Copy'}
                </Button>
              )}
            </CopyButton>
          </Group>
        </Group>
        <Code block className="wraps" tabIndex={0}>
          {text}
        </Code>
      </Stack>
    </Paper>
  );
}
