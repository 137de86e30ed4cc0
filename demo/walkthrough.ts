import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { DemoClient, DemoError, formatAnswer } from './client.ts';
import { TerminalPrinter } from './narrator.ts';
import { SCENARIOS } from './stories.ts';

/** `npm run demo`: what the gateway promises, shown on a running one. Exit code 1 when a promise is not kept. */
const { env } = process;
const narrator = new TerminalPrinter(process.stdout, env);

try {
  const url = (env['ONCEGATE_URL'] || `http://127.0.0.1:${env['PORT'] || '8080'}`).replace(/\/+$/, '');
  const agent = new DemoClient(url, await readDemoKey('ONCEGATE_DEMO_AGENT_KEY', 'agentKey'));
  const person = new DemoClient(url, await readDemoKey('ONCEGATE_DEMO_ADMIN_KEY', 'adminKey'));
  narrator.printTitle(`Oncegate in ${SCENARIOS.length} stories`);
  narrator.printText(
    `An agent calls tools through the gateway at ${url}. Behind it are four small services: payments, tickets, files and
    mail. They keep count of what really happened, and each story ends by asking them.`,
  );
  await requireDemoGateway(agent);
  const run = `demo-${randomBytes(3).toString('hex')}`;
  for (const [index, story] of SCENARIOS.entries()) {
    narrator.printHeading(index + 1, story.title);
    await story.tell({ agent, person, narrator, run });
  }
  narrator.printTitle('\nAll of it was checked, none of it was played.');
} catch (error) {
  if (!(error instanceof DemoError)) throw error;
  narrator.printFailure(error.message);
  process.exitCode = 1;
}

/** From the environment, or where `npm start` left it. */
async function readDemoKey(variable: string, name: 'agentKey' | 'adminKey'): Promise<string> {
  const given = env[variable];
  if (given) return given;
  const file = path.join(env['ONCEGATE_DATA_DIR'] || '.oncegate', 'demo-keys.json');
  try {
    const kept = (JSON.parse(await readFile(file, 'utf8')) as Record<string, unknown>)[name];
    if (typeof kept === 'string') return kept;
  } catch {
    // Absent or not JSON: the same to whoever has to do something about it.
  }
  throw new DemoError(
    `There is no ${name} in ${file}. Start the gateway in another terminal with: npm start. If it was started with an
    ONCEGATE_DATA_DIR, set the same one here (or set ${variable} to the key it prints).`,
  );
}

async function requireDemoGateway(agent: DemoClient): Promise<void> {
  const answer = await agent.send('GET', '/v1/tools');
  if (answer.status === 401) {
    throw new DemoError(
      `This gateway does not know the demo key: is it another one? Set ONCEGATE_DATA_DIR to the one it was started with;
      its demo-keys.json has the key.`,
    );
  }
  if (answer.status !== 200) throw new DemoError(`The gateway would not list its tools: ${formatAnswer(answer)}`);
  if (!answer.body.tools?.some(({ name }) => name === 'demo.effects')) {
    throw new DemoError('This gateway has no demo tools: start it without ONCEGATE_DEMO=0.');
  }
}
