import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const REFUSED = [
  ['gateway/domain', '../ledger/db.ts'],
  ['gateway/domain/calls', '../../ledger/db.ts'],
  ['gateway/domain/audit', 'pg'],
  ['gateway/policy', '../ledger/db.ts'],
  ['gateway/policy/compile', '../../ledger/db.ts'],
  ['gateway/ledger', '../policy/decide.ts'],
  ['gateway/ledger/calls', '../../policy/decide.ts'],
  ['gateway/ledger/sagas', '../../../adapters/registry.ts'],
  ['gateway/flow', '../http/encode.ts'],
  ['gateway/flow/attempts', '../../http/encode.ts'],
  ['gateway/flow/calls', 'undici'],
  ['gateway/http', '../ledger/db.ts'],
  ['gateway/http/transport', '../../ledger/db.ts'],
  ['gateway/mcp', '../ledger/db.ts'],
  ['adapters', '../gateway/ledger/db.ts'],
  ['adapters/http', '../../gateway/ledger/db.ts'],
] as const;

const ALLOWED = [
  ['gateway/domain/sagas', '../json.ts'],
  ['gateway/policy/expressions', '../../domain/json.ts'],
  ['gateway/ledger/audit', '../db.ts'],
  ['gateway/flow/sagas', '../../../adapters/registry.ts'],
  ['gateway/http/openapi', '../../flow/context.ts'],
  ['adapters/mcp', '../../gateway/domain/json.ts'],
] as const;

/** A file in that folder of a scratch copy of the tree, which holds the lint rules and these files only. */
const fileIn = (folder: string) => `${folder}/deliberate.ts`;

let scratch: string;
let diagnostics: string[];

beforeAll(() => {
  scratch = mkdtempSync(join(tmpdir(), 'oncegate-layers-'));
  copyFileSync('biome.json', join(scratch, 'biome.json'));
  for (const [folder, imported] of [...REFUSED, ...ALLOWED]) {
    const file = join(scratch, fileIn(folder));
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, `import { thing } from '${imported}';\n\nexport const used = thing;\n`);
  }
  const biome = resolve('node_modules/.bin/biome');
  const { stdout } = spawnSync(biome, ['lint', '--reporter=github', '--max-diagnostics=none'], {
    cwd: scratch,
    encoding: 'utf8',
  });
  diagnostics = stdout.split('\n').filter((line) => line.includes('noRestrictedImports'));
});
afterAll(() => rmSync(scratch, { recursive: true }));

describe('the layer rules', () => {
  it.each(REFUSED)('refuse in %s an import of %s', (folder) => {
    expect(diagnostics.filter((line) => line.includes(`/${fileIn(folder)},`))).toHaveLength(1);
  });

  it.each(ALLOWED)('allow in %s an import of %s', (folder) => {
    expect(diagnostics.filter((line) => line.includes(`/${fileIn(folder)},`))).toEqual([]);
  });

  const layers = ['domain', 'policy', 'ledger', 'flow', 'http', 'mcp'].map((layer) => `gateway/${layer}`);
  it.each([...layers, 'adapters'])('reach every file of %s: its folders have no folders', (layer) => {
    const folders = readdirSync(layer, { withFileTypes: true }).filter((entry) => entry.isDirectory());
    const inside = folders.flatMap(({ name }) => readdirSync(join(layer, name), { withFileTypes: true }));
    expect(inside.filter((entry) => entry.isDirectory()).map(({ name }) => name)).toEqual([]);
  });
});
