import { fileURLToPath } from 'node:url';
import { brotliCompressSync, constants, gzipSync } from 'node:zlib';

import react from '@vitejs/plugin-react';
import type { Plugin } from 'vite';
import { defineConfig } from 'vitest/config';

const COMPRESSED = /\.(js|css|svg)$/;

/** Writes each asset compressed beside it, as `gateway/console/built_console.py` serves it. */
function precompress(): Plugin {
  return {
    name: 'turnpike-precompress',
    apply: 'build',
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        for (const [name, file] of Object.entries(bundle)) {
          if (!COMPRESSED.test(name)) continue;
          const content = Buffer.from(file.type === 'chunk' ? file.code : file.source);
          const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY } };
          this.emitFile({ type: 'asset', fileName: `${name}.gz`, source: gzipSync(content, { level: 9 }) });
          this.emitFile({ type: 'asset', fileName: `${name}.br`, source: brotliCompressSync(content, quality) });
        }
      },
    },
  };
}

const gateway = process.env.TURNPIKE_URL ?? 'http://127.0.0.1:8080';

export default defineConfig({
  base: '/console/',
  plugins: [react(), precompress()],
  resolve: { alias: { '~': fileURLToPath(new URL('./src', import.meta.url)) } },
  build: {
    outDir: '../gateway/console/static',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    manifest: 'manifest.json',
    target: 'es2022',
    chunkSizeWarningLimit: 700,
  },
  server: { proxy: { '/admin': gateway, '/v1': gateway, '/openapi.json': gateway } },
  test: { environment: 'happy-dom', include: ['src/**/*.test.{ts,tsx}'] },
});
