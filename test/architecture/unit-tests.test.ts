import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { findUnitTests, SLOW_UNIT_TESTS } from '../support/unit-tests.ts';

async function findUnitTestsAmong(files: Readonly<Record<string, string>>): Promise<string[]> {
  const folder = await mkdtemp(join(tmpdir(), 'oncegate-unit-tests-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text);
  return findUnitTests(folder).map((path) => path.slice(folder.length + 1));
}

describe('a test file', () => {
  it.each([
    ['that starts a process', `import { spawn } from 'node:child_process';`],
    ['whose helper does', `import { start } from './helper.ts';`],
    ['whose helper does, imported over several lines', `import {\n  start,\n} from './helper.ts';`],
    ['that imports such a helper later', `await import('./helper.ts');`],
    ['that connects to the PostgreSQL of the suite', `const url = inject('postgresUrl');`],
    [
      'that starts an MCP server over standard streams',
      `import { T } from '../../adapters/mcp/mcp-stdio-transport.ts';`,
    ],
  ])('%s is no unit test', async (_, text) => {
    const helper = `import { spawn } from 'node:child_process';\nexport const start = () => spawn('x');`;
    expect(await findUnitTestsAmong({ 'a.test.ts': text, 'helper.ts': helper })).toEqual([]);
  });

  it.each([
    ['that imports only types of such a helper', `import type { Started } from './helper.ts';`],
    ['that imports the code under test', `import { canonicalize } from '../../gateway/domain/canonical.ts';`],
  ])('%s is a unit test', async (_, text) => {
    const helper = `import { spawn } from 'node:child_process';`;
    expect(await findUnitTestsAmong({ 'a.test.ts': text, 'helper.ts': helper })).toEqual(['a.test.ts']);
  });
});

it('the slow unit tests are unit tests that exist', () => {
  expect(findUnitTests('test')).toEqual(expect.arrayContaining(SLOW_UNIT_TESTS));
});
