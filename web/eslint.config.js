import hooks from 'eslint-plugin-react-hooks';
import typescript from 'typescript-eslint';

export default typescript.config(
  { ignores: ['src/api/schema.d.ts', 'e2e/results'] },
  ...typescript.configs.strict,
  hooks.configs.flat.recommended,
  {
    rules: {
      // Money and counts of tokens come as decimal strings and integers: a float would round them.
      'no-restricted-globals': ['error', { name: 'parseFloat', message: 'Use ~/money/decimal.' }],
      '@typescript-eslint/no-non-null-assertion': 'off',
    },
  },
);
