/** How the tests in a browser run: `npx vitest run --config e2e/vitest.config.ts`, or `make test-browser`. */
import { fileURLToPath } from 'node:url';

import { defineConfig } from 'vitest/config';

export default defineConfig({
  root: fileURLToPath(new URL('..', import.meta.url)),
  resolve: { alias: { '~': fileURLToPath(new URL('../src', import.meta.url)) } },
  test: {
    include: ['e2e/**/*.e2e.ts'],
    environment: 'node',
    globalSetup: ['e2e/stand/global_setup.ts'],
    // Two cores have a gateway and a browser to run as well; what is timed would time its neighbours.
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 300_000,
    reporters: ['default', ['json', { outputFile: 'e2e/results/results.json' }]],
  },
});
