import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { createServer, request as httpRequest } from 'node:http';
import type { AddressInfo } from 'node:net';
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { FRAMEWORKS_DIR as HOME, NODE_22, prepareFrameworks } from '../clients/install.ts';
import { AGENT_KEY, keysYaml, makeGateway, PEOPLE_YAML } from '../support/gateway.ts';

const USAGE = `npm run conformance -- --server URL

Runs the official conformance suite of MCP against a server, and against the gateway in front of that server.
Fails if a scenario that passes directly fails through the gateway.
Start the "everything server" of the suite first (examples/servers/typescript in the suite's repository).
`;

const SUITE = '@modelcontextprotocol/conformance@0.2.0-alpha.12';
const REVISIONS = ['2025-11-25', '2026-07-28'];

const { values } = parseArgs({ options: { server: { type: 'string' }, help: { type: 'boolean', default: false } } });
if (values.server === undefined || values.help) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}

const suite = resolve(HOME, 'node_modules/@modelcontextprotocol/conformance/dist/index.js');
await prepareFrameworks();
if (!existsSync(suite)) {
  console.error(`The suite is not installed:\n\n  npm install --no-save --prefix test/frameworks ${SUITE}\n`);
  process.exit(1);
}

/** Passed and failed checks of each scenario. */
type Scores = ReadonlyMap<string, { readonly passed: number; readonly failed: number }>;

async function runSuite(url: string, revision: string): Promise<Scores> {
  const child = spawn(NODE_22, [suite, 'server', '--url', url, '--requirements', revision], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let text = '';
  child.stdout.on('data', (chunk: Buffer) => (text += chunk.toString()));
  await once(child, 'close');
  const scores = new Map<string, { passed: number; failed: number }>();
  for (const [, name, passed, failed] of text.matchAll(/^[✗✓] (\S+): (\d+) passed, (\d+) failed$/gm))
    scores.set(name ?? '', { passed: Number(passed), failed: Number(failed) });
  if (scores.size === 0) throw new Error(`The suite printed no scores. Its last output:\n${text.slice(-2_000)}`);
  return scores;
}

/** The suite sends no credentials, so this proxy adds the key of the agent to each request. */
async function startAuthProxy(port: number) {
  const server = createServer((request, response) => {
    const { method, url, headers } = request;
    const sentHeaders = { ...headers, authorization: `Bearer ${AGENT_KEY}` };
    const out = httpRequest({ host: '127.0.0.1', port, method, path: url, headers: sentHeaders }, (answer) => {
      response.writeHead(answer.statusCode ?? 500, answer.headers);
      answer.pipe(response);
    });
    out.on('error', () => response.destroy());
    response.on('close', () => out.destroy());
    request.pipe(out);
  });
  server.listen(0, 'localhost');
  await once(server, 'listening');
  return { url: `http://localhost:${(server.address() as AddressInfo).port}/mcp`, server };
}

const gateway = await makeGateway({
  policies: {
    'everything.yaml': `
upstreams:
  everything: { adapter: mcp, url: "${values.server}", import: "*", expose: bare, allowPrivate: true }
agents:
  tester: { ${keysYaml(AGENT_KEY)}, rules: [{ allow: "*", approve: never }] }
${PEOPLE_YAML}`,
  },
  env: { ONCEGATE_DEMO: '0' },
});
await gateway.start();
const authProxy = await startAuthProxy(gateway.port);
let worseCount = 0;
try {
  for (const revision of REVISIONS) {
    const direct = await runSuite(values.server, revision);
    const proxied = await runSuite(authProxy.url, revision);
    console.log(`\n${revision.padEnd(52)}directly   through`);
    for (const [name, { passed, failed }] of direct) {
      const other = proxied.get(name) ?? { passed: 0, failed: 1 };
      const isWorse = failed === 0 && other.failed > 0;
      if (isWorse) worseCount += 1;
      const format = (score: { passed: number; failed: number }) =>
        `${score.passed}/${score.passed + score.failed}`.padStart(10);
      console.log(`${isWorse ? '✗' : ' '} ${name.padEnd(48)}${format({ passed, failed })}${format(other)}`);
    }
  }
} finally {
  authProxy.server.closeAllConnections();
  authProxy.server.close();
  await gateway.dispose();
}
console.log(
  worseCount === 0
    ? '\nNo scenario does worse through the gateway.'
    : `\n${worseCount} scenarios do worse through the gateway.`,
);
process.exit(worseCount === 0 ? 0 : 1);
