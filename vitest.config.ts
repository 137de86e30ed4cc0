import { defineConfig } from 'vitest/config';
import { findUnitTests, SLOW_UNIT_TESTS } from './test/support/unit-tests.ts';

const units = findUnitTests('test');

export default defineConfig({
  test: {
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Two cores: more workers than that only make process-killing tests slower.
    maxWorkers: 2,
    // Only the project `system` needs a build and a PostgreSQL. Vitest starts them only if a file of that project runs.
    projects: [
      // Without isolation the files share loaded modules, which halves the time: a unit test must undo what it mocks.
      { extends: true, test: { name: 'unit', include: units, exclude: SLOW_UNIT_TESTS, isolate: false } },
      { extends: true, test: { name: 'slow-unit', include: SLOW_UNIT_TESTS } },
      {
        extends: true,
        test: {
          name: 'system',
          include: ['test/**/*.test.ts'],
          exclude: ['**/node_modules/**', ...units],
          globalSetup: ['test/support/global-setup.ts'],
        },
      },
    ],
  },
});
