import { execFile } from 'node:child_process';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { beforeAll, expect, test } from 'vitest';
import { AGENT_KEY, keysYaml, PEOPLE_YAML, sha256Hex } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { FRAMEWORKS_DIR, NODE_22, prepareFrameworks } from './install.ts';

/** The recipes of the docs. Each runs in its own process, in its framework, with a scripted model. */
const RECIPES = ['ai-sdk', 'openai-agents', 'langchain', 'mastra'];

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
    ${keysYaml(AGENT_KEY)}
    rules:
      - { allow: world.charge, when: args.amount <= 100, approve: never }
${PEOPLE_YAML}`;

beforeAll(prepareFrameworks, 600_000);
const { upstream, gateway } = useGateway({ policies });

interface ScriptedCall {
  readonly id: string;
  readonly name: string;
  readonly args: object;
}

/** Runs a recipe and returns the results that the model got. */
async function runScript(recipe: string, calls: readonly ScriptedCall[]) {
  return JSON.parse(await runRecipe(recipe, recipe, calls));
}

/** Runs a recipe with the scripted model of its framework. Returns the last answer of the model. */
async function runRecipe(framework: string, recipe: string, calls: readonly ScriptedCall[]): Promise<string> {
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

test.each(RECIPES)('%s: each call happens once, and the model learns its outcome', async (recipe) => {
  const charge = (id: string, name: string, amount = 5) => ({
    id,
    name: 'world__charge',
    args: { id: `${recipe}-${name}`, amount },
  });
  const script = [
    charge(vendorId(recipe, 1), 'once'),
    charge('call_0', 'counted'),
    charge('call_1', 'counted'),
    charge(vendorId(recipe, 2), 'dear', 500),
    charge(vendorId(recipe, 3), 'doubt'),
  ];
  await upstream.plan({ match: { id: `${recipe}-doubt` }, do: ['apply', 'drop'] });
  const first = await runScript(recipe, script);
  // An agent that resumes after a crash makes the same calls again.
  const again = await runScript(recipe, script);

  expect(first[0]).toMatchObject({ t: expect.any(String) });
  expect(again[0]).toEqual(first[0]);
  expect(await upstream.effects(`${recipe}-once`)).toHaveLength(1);
  // Counted ids are other calls in another run: two in each of the two runs.
  expect(await upstream.effects(`${recipe}-counted`)).toHaveLength(4);
  for (const [, , , denied, doubt] of [first, again]) {
    expect(denied.message).toMatch(/^Refused \(denied\), nothing happened\./);
    expect(doubt.message).toMatch(/^In doubt .*Do not call the tool again/);
  }
  expect(await upstream.effects(`${recipe}-dear`)).toHaveLength(0);
  expect(await upstream.effects(`${recipe}-doubt`)).toHaveLength(1);
});

/** Mastra adds the name of the server to the names of its tools. */
const formatToolName = (framework: string) => (framework === 'mastra' ? 'oncegate_world__charge' : 'world__charge');

test.each(RECIPES)(
  '%s over MCP: a call that is repeated after a crash happens once, and a denial is reported',
  async (framework) => {
    const charge = (n: number, name: string, amount = 5) => ({
      id: vendorId(`${framework} mcp`, n),
      name: formatToolName(framework),
      args: { id: `${framework}-mcp-${name}`, amount },
    });
    const script = [charge(1, 'once'), charge(2, 'dear', 500)];
    const first = await runRecipe(framework, `${framework}-mcp`, script);
    const again = await runRecipe(framework, `${framework}-mcp`, script);
    expect(await upstream.effects(`${framework}-mcp-once`)).toHaveLength(1);
    expect(await upstream.effects(`${framework}-mcp-dear`)).toHaveLength(0);
    expect(first).toContain('denied');
    // Mastra shows the model only the structured result, which has no text.
    if (framework !== 'mastra') expect(again).toContain('was not executed again');
  },
);
