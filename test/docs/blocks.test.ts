import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readConfig } from '../../gateway/config.ts';
import { runPolicyTests } from '../../gateway/policy/policy-tests.ts';
import { runCli } from '../cli/terminal.ts';
import { compilePolicyText, listPolicyFaults } from '../policy/example.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { type Gateway, startGateway } from '../support/gateway.ts';
import { type Block, formatLocation, listPages, readBlocks } from './blocks.ts';
import { listShapeFaults } from './json-shape.ts';
import { completePolicy, fillEnv, findTestedPolicy } from './policies.ts';
import { type ReaderKeys, runShellBlocks } from './shell.ts';

/** The marks that may follow the language of a block; the mark may be empty. `status=N` is the status that its requests must get. */
const MARKS: Readonly<Record<string, RegExp>> = {
  sh: /^(manual|status=\d{3})?$/,
  yaml: /^(config|test|part=.+)?$/,
  json: /^$/,
  ts: /^$/,
  js: /^$/,
  python: /^$/,
  text: /^$/,
};

/** Blocks that no test runs, by page and first line, each with its reason. */
const MANUAL: ReadonlyArray<readonly [page: string, firstLine: string, reason: string]> = [
  ['README.md', 'npm ci && npm start', 'installs packages; test/e2e/start.test.ts starts a gateway'],
  ['README.md', 'npm run demo', 'test/e2e/start.test.ts runs the demo'],
  ['README.md', 'npm ci && npm test', 'this suite itself'],
  ['docs/tutorials/quick-start.md', 'npm ci && npm start', 'as in README.md'],
  ['docs/tutorials/quick-start.md', 'export KEY=og_demo_…            # the agent key of the banner', 'shortened keys'],
  ['docs/tutorials/quick-start.md', 'PORT=8190 ONCEGATE_DATA_DIR=/tmp/gate npm start', 'runs until Ctrl-C'],
  [
    'docs/guides/audit-log.md',
    'npx oncegate witness --log "$(cat oncegate.pub)" --listen 0.0.0.0:8090',
    'runs until Ctrl-C; test/audit/witness.test.ts',
  ],
  [
    'docs/guides/audit-log.md',
    'npx oncegate audit accept --reason "disk of db1 died; restored the backup of 3:00"',
    'needs a restored database; test/audit/anchors.test.ts',
  ],
  [
    'docs/guides/console.md',
    'curl -N http://127.0.0.1:8080/admin/events -H "Authorization: Bearer $ONCEGATE_KEY"',
    'does not end; test/console/events.test.ts',
  ],
  [
    'docs/guides/egress.md',
    'export AGENT_KEY=… POSTGRES_PASSWORD=… PAYMENTS_TOKEN=… POLICIES=$PWD/policies',
    'needs Docker; test/e2e/egress-files.test.ts',
  ],
  [
    'docs/guides/egress.md',
    'docker compose -f deploy/agents.compose.yaml exec -T agent node --input-type=module - \\',
    'needs Docker',
  ],
  [
    'docs/guides/mcp.md',
    'npx oncegate accept crm create_contact --reason "new optional field, harmless"',
    'needs an MCP server that changed; test/mcp/pins.test.ts',
  ],
  [
    'docs/guides/undo.md',
    'npx oncegate resume "$SAGA" --reason "the provider is back"',
    'needs a parked saga; test/cli/saga-verbs.test.ts',
  ],
  ['docs/operations/capacity.md', 'npm run bench', 'takes hours'],
  ['docs/why/promises.md', 'npm run campaign -- --calls 2000', 'takes many minutes'],
];

const pages = await listPages();
const blocks = (await Promise.all(pages.map(readBlocks))).flat();
const select = (language: string, mark: RegExp) =>
  blocks.filter((block) => block.language === language && mark.test(block.mark));
const withLocation = (selected: readonly Block[]) => selected.map((block) => [formatLocation(block), block] as const);

describe('the blocks of README.md and docs/', () => {
  it('have a language and a mark that says how they are tested', () => {
    const faults = blocks
      .filter(({ language, mark }) => MARKS[language]?.test(mark) !== true)
      .map((block) => `${formatLocation(block)}: \`\`\`${block.language} ${block.mark}`);
    expect(faults).toEqual([]);
    expect(blocks.length).toBeGreaterThan(100);
  });

  it('are run, except the listed ones', () => {
    const manual = select('sh', /^manual$/).map(({ page, text }) => `${page}: ${text.split('\n')[0]}`);
    expect(manual.sort()).toEqual(MANUAL.map(([page, firstLine]) => `${page}: ${firstLine}`).sort());
  });

  it('name commands, options and scripts that exist, even where they are not run', async () => {
    const { scripts } = JSON.parse(await readFile('package.json', 'utf8')) as { scripts: Record<string, string> };
    for (const block of select('sh', /^manual$/)) {
      for (const [, script = ''] of block.text.matchAll(/\bnpm run ([\w:]+)/g))
        expect(Object.keys(scripts), formatLocation(block)).toContain(script);
      for (const [, verb = '', rest = ''] of block.text.matchAll(/\boncegate (audit \w+|\w+)(.*)$/gm)) {
        const { code, out } = await runCli(['help', ...verb.split(' ')]);
        expect(code, `${formatLocation(block)}: ${verb}`).toBe(0);
        for (const [option] of rest.matchAll(/--[\w-]+/g)) expect(out, formatLocation(block)).toContain(option);
      }
    }
  });

  it.each(withLocation(select('json', /^$/)))('%s is JSON', (_location, { text }) => {
    expect(() => JSON.parse(text)).not.toThrow();
  });
});

describe('the YAML of README.md and docs/', () => {
  it.each(withLocation(select('yaml', /^(part=.+)?$/)))('%s loads as a policy', async (_location, block) => {
    const policy = await completePolicy(block, blocks);
    expect(listPolicyFaults(policy, fillEnv(policy))).toEqual([]);
  });

  it.each(withLocation(select('yaml', /^test$/)))('%s holds policy tests that pass', (_location, block) => {
    const policy = findTestedPolicy(block, blocks);
    const loaded = compilePolicyText({ 'p.yaml': policy, 'p_test.yaml': block.text }, fillEnv(policy));
    if (!loaded.ok) throw new Error(JSON.stringify(loaded.faults));
    const results = runPolicyTests(loaded.policies, loaded.tests);
    expect(results.length).toBeGreaterThan(0);
    expect(results.flatMap(({ faults }) => faults)).toEqual([]);
  });

  it('includes policy tests that fail when their history is misspelled', () => {
    const block = select('yaml', /^test$/).find(({ page }) => page.endsWith('history-and-taint.md'));
    if (block === undefined) throw new Error('history-and-taint.md has no block of policy tests.');
    const tests = block.text.replaceAll('{ tool: store.refund', '{ tool: store.refnd');
    const loaded = compilePolicyText({ 'p.yaml': findTestedPolicy(block, blocks), 'p_test.yaml': tests });
    if (!loaded.ok) throw new Error(JSON.stringify(loaded.faults));
    expect(loaded.warnings).toEqual([]);
    const faults = runPolicyTests(loaded.policies, loaded.tests).flatMap((result) => result.faults);
    expect(faults).toContain('history names a tool that does not exist: "store.refnd". Did you mean "store.refund"?');
    expect(faults.join()).toContain('Expected hold, got allow');
  });

  it.each(withLocation(select('yaml', /^config$/)))('%s is a configuration', async (_location, { text }) => {
    const directory = await mkdtemp(join(tmpdir(), 'oncegate-docs-'));
    await writeFile(join(directory, 'oncegate.yaml'), text);
    await expect(readConfig(fillEnv(text), directory)).resolves.toBeDefined();
    await rm(directory, { recursive: true });
  });
});

/** All pages share one gateway, as for a reader who goes from page to page. */
describe('the shell blocks of README.md and docs/', () => {
  let database: TestDatabase;
  let gateway: Gateway;
  let keys: ReaderKeys;

  beforeAll(async () => {
    database = await createTestDatabase();
    const policies = { 'demo.yaml': await readFile('policies/demo.yaml', 'utf8') };
    gateway = await startGateway({ policies, databaseUrl: database.url });
    keys = JSON.parse(await readFile(join(gateway.home, 'data/demo-keys.json'), 'utf8')) as ReaderKeys;
  });
  afterAll(async () => {
    await gateway?.dispose();
    await database?.drop();
  });

  const runnable = select('sh', /^(status=\d+)?$/);
  it.each(pages.filter((page) => runnable.some((block) => block.page === page)))('%s', async (page) => {
    const results = await runShellBlocks(
      gateway,
      keys,
      runnable.filter((block) => block.page === page),
    );
    for (const { block, stdout, stderr, statuses } of results) {
      const expected = /^status=(\d+)$/.exec(block.mark)?.[1];
      const unexpected = statuses.filter((status) => (expected ? status !== Number(expected) : status >= 400));
      expect(unexpected, `${formatLocation(block)}\n${stdout}\n${stderr}`).toEqual([]);
      const answer = findAnswer(block);
      if (answer !== undefined)
        expect(listShapeFaults(parseLastJson(stdout), JSON.parse(answer.text)), formatLocation(answer)).toEqual([]);
    }
  });
});

/** Finds the documented answer of a shell block: a JSON block that follows it under the same heading. */
function findAnswer(block: Block): Block | undefined {
  const next = blocks[blocks.indexOf(block) + 1];
  const isAnswer = next?.language === 'json' && next.page === block.page && next.heading === block.heading;
  return isAnswer ? next : undefined;
}

function parseLastJson(output: string): unknown {
  const last = output.trim().split('\n').at(-1) ?? '';
  return JSON.parse(last);
}
