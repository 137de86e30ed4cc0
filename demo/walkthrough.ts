import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { DemoClient, DemoError, formatAnswer } from './client.ts';
import { SCENARIOS } from './scenarios.ts';
import { TerminalPrinter } from './terminal-printer.ts';

/** `npm run demo`: plays the scenarios (stories, in its output) against a running gateway. Exit code 1 if one fails. */
const { env } = process;
const printer = new TerminalPrinter(process.stdout, env);

try {
  const url = (env['ONCEGATE_URL'] || `http://127.0.0.1:${env['PORT'] || '8080'}`).replace(/\/+$/, '');
  const agent = new DemoClient(url, await readDemoKey('ONCEGATE_DEMO_AGENT_KEY', 'agentKey'));
  const person = new DemoClient(url, await readDemoKey('ONCEGATE_DEMO_ADMIN_KEY', 'adminKey'));
  printer.printTitle(`Oncegate in ${SCENARIOS.length} stories`);
  printer.printText(
    `An agent calls tools through the gateway at ${url}. Behind the gateway are four small services: payments, tickets,
    files and mail. They count what really happened, and each story (✓) checks those counts.`,
  );
  await requireDemoGateway(agent);
  const runId = `demo-${randomBytes(3).toString('hex')}`;
  for (const [index, scenario] of SCENARIOS.entries()) {
    printer.printHeading(index + 1, scenario.title);
    await scenario.play({ agent, person, printer, runId });
  }
  printer.printTitle('\nEvery ✓ was checked against the services.');
} catch (error) {
  if (!(error instanceof DemoError)) throw error;
  printer.printFailure(error.message);
  process.exitCode = 1;
}

/** Reads a demo key from the environment, or from the data directory of `npm start`. */
async function readDemoKey(variable: string, name: 'agentKey' | 'adminKey'): Promise<string> {
  const given = env[variable];
  if (given) return given;
  const file = path.join(env['ONCEGATE_DATA_DIR'] || '.oncegate', 'demo-keys.json');
  try {
    const kept = (JSON.parse(await readFile(file, 'utf8')) as Record<string, unknown>)[name];
    if (typeof kept === 'string') return kept;
  } catch {
    // The file is absent or not JSON; the remedy is the same.
  }
  throw new DemoError(
    `There is no ${name} in ${file}. Start the gateway in another terminal with "npm start". If you started it with an
    ONCEGATE_DATA_DIR, set the same one here, or set ${variable} to the key that it prints.`,
  );
}

async function requireDemoGateway(agent: DemoClient): Promise<void> {
  const answer = await agent.send('GET', '/v1/tools');
  if (answer.status === 401) {
    throw new DemoError(
      `The gateway does not know the demo key. Set ONCEGATE_DATA_DIR to the one it was started with: the key is in its
      demo-keys.json.`,
    );
  }
  if (answer.status !== 200) throw new DemoError(`The gateway did not list its tools: ${formatAnswer(answer)}`);
  if (!answer.body.tools?.some(({ name }) => name === 'demo.effects')) {
    throw new DemoError('The gateway has no demo tools. Start it without ONCEGATE_DEMO=0.');
  }
}
