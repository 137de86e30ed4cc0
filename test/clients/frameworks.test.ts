import { execFile } from 'node:child_process';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startUpstream, type TestUpstream } from '../faults/upstream.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { AGENT_KEY, type Gateway, PEOPLE_YAML, sha256Hex, startGateway } from '../support/gateway.ts';
import { FRAMEWORKS_DIR, NODE_22, prepareFrameworks } from './install.ts';

/** The recipes of the docs, each run as a process of its own in its framework, with a model that follows a script. */
const RECIPES = ['ai-sdk', 'openai-agents', 'langchain', 'mastra'];

let upstream: TestUpstream;
let database: TestDatabase;
let gateway: Gateway;

const policies = (url: string) => `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true }
tools:
  world.charge:
    upstream: world
    description: Charge somebody.
    input: { type: object, properties: { id: { type: string }, amount: { type: integer } }, required: [id], additionalProperties: false }
    request: { method: POST, path: /none/mail }
agents:
  tester:
    keys: ["sha256:${sha256Hex(AGENT_KEY)}"]
    rules:
      - { allow: world.charge, when: args.amount <= 100, approve: never }
${PEOPLE_YAML}`;

beforeAll(async () => {
  await prepareFrameworks();
  upstream = await startUpstream();
  database = await createTestDatabase();
  gateway = await startGateway({ policies: { 'p.yaml': policies(upstream.url) }, databaseUrl: database.url });
}, 600_000);
afterAll(async () => {
  await gateway?.dispose();
  await database?.drop();
  await upstream?.stop();
});

interface ScriptedCall {
  readonly id: string;
  readonly name: string;
  readonly args: object;
}

/** What the model was shown of each call. */
async function play(recipe: string, calls: readonly ScriptedCall[]) {
  return JSON.parse(await run(recipe, recipe, calls));
}

/** A recipe with the model of its framework; what the model said last. */
async function run(framework: string, recipe: string, calls: readonly ScriptedCall[]): Promise<string> {
  const { stdout } = await promisify(execFile)(
    NODE_22,
    [
      '--disable-warning=ExperimentalWarning',
      '--import',
      join(FRAMEWORKS_DIR, 'resolve.mjs'),
      join(FRAMEWORKS_DIR, `${framework}.mjs`),
      `${recipe}.ts`,
    ],
    {
      cwd: resolve('.'),
      env: {
        PATH: process.env['PATH'],
        ONCEGATE_URL: gateway.url,
        ONCEGATE_KEY: AGENT_KEY,
        CALLS: JSON.stringify(calls),
      },
    },
  );
  return stdout;
}

const vendorId = (recipe: string, n: number) => `call_${sha256Hex(`${recipe} ${n}`).slice(0, 24)}`;

test.each(RECIPES)('%s: each wish happens once, and the model is told what came of it', async (recipe) => {
  const charge = (id: string, wish: string, amount = 5) => ({
    id,
    name: 'world__charge',
    args: { id: `${recipe}-${wish}`, amount },
  });
  const script = [
    charge(vendorId(recipe, 1), 'once'),
    charge('call_0', 'counted'),
    charge('call_1', 'counted'),
    charge(vendorId(recipe, 2), 'dear', 500),
    charge(vendorId(recipe, 3), 'doubt'),
  ];
  await upstream.plan({ match: { id: `${recipe}-doubt` }, do: ['apply', 'drop'] });
  const first = await play(recipe, script);
  // An agent that comes back after a crash makes the same calls again.
  const again = await play(recipe, script);

  expect(first[0]).toMatchObject({ t: expect.any(String) });
  expect(again[0]).toEqual(first[0]);
  expect(await upstream.effects(`${recipe}-once`)).toHaveLength(1);
  // Ids that only count are other wishes in another run, and two of them are two.
  expect(await upstream.effects(`${recipe}-counted`)).toHaveLength(4);
  for (const [, , , denied, doubt] of [first, again]) {
    expect(denied.message).toMatch(/^Refused \(denied\), nothing happened\./);
    expect(doubt.message).toMatch(/^In doubt .*Do not call the tool again/);
  }
  expect(await upstream.effects(`${recipe}-dear`)).toHaveLength(0);
  expect(await upstream.effects(`${recipe}-doubt`)).toHaveLength(1);
});

/** Mastra puts the name of the server before the names of its tools. */
const named = (framework: string) => (framework === 'mastra' ? 'oncegate_world__charge' : 'world__charge');

test.each(RECIPES)(
  '%s over MCP: a wish that is made again after a crash happens once, and a denial is told',
  async (framework) => {
    const charge = (n: number, wish: string, amount = 5) => ({
      id: vendorId(`${framework} mcp`, n),
      name: named(framework),
      args: { id: `${framework}-mcp-${wish}`, amount },
    });
    const script = [charge(1, 'once'), charge(2, 'dear', 500)];
    const first = await run(framework, `${framework}-mcp`, script);
    const again = await run(framework, `${framework}-mcp`, script);
    expect(await upstream.effects(`${framework}-mcp-once`)).toHaveLength(1);
    expect(await upstream.effects(`${framework}-mcp-dear`)).toHaveLength(0);
    expect(first).toContain('denied');
    // Mastra shows its models the structured result, which has no place for words.
    if (framework !== 'mastra') expect(again).toContain('was not executed again');
  },
);
