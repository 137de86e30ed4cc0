import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { Client, inWords, Surprise } from './client.ts';
import { Narrator } from './narrator.ts';
import { STORIES } from './stories.ts';

/** `npm run demo`: what the gateway promises, shown on a running one. Exit code 1 when a promise is not kept. */
const { env } = process;
const narrator = new Narrator(process.stdout, env);

try {
  const url = (env['ONCEGATE_URL'] || `http://127.0.0.1:${env['PORT'] || '8080'}`).replace(/\/+$/, '');
  const agent = new Client(url, await keyOf('ONCEGATE_DEMO_AGENT_KEY', 'agentKey'));
  const person = new Client(url, await keyOf('ONCEGATE_DEMO_ADMIN_KEY', 'adminKey'));
  narrator.title(`Oncegate in ${STORIES.length} stories`);
  narrator.say(
    `An agent calls tools through the gateway at ${url}. Behind it are four small services: payments, tickets, files and
    mail. They keep count of what really happened, and each story ends by asking them.`,
  );
  await knowsTheDemo(agent);
  const run = `demo-${randomBytes(3).toString('hex')}`;
  for (const [index, story] of STORIES.entries()) {
    narrator.story(index + 1, story.title);
    await story.tell({ agent, person, narrator, run });
  }
  narrator.title('\nAll of it was checked, none of it was played.');
} catch (error) {
  if (!(error instanceof Surprise)) throw error;
  narrator.fails(error.message);
  process.exitCode = 1;
}

/** From the environment, or where `npm start` left it. */
async function keyOf(variable: string, name: 'agentKey' | 'adminKey'): Promise<string> {
  const given = env[variable];
  if (given) return given;
  const file = path.join(env['ONCEGATE_DATA_DIR'] || '.oncegate', 'demo-keys.json');
  try {
    const kept = (JSON.parse(await readFile(file, 'utf8')) as Record<string, unknown>)[name];
    if (typeof kept === 'string') return kept;
  } catch {
    // Absent or not JSON: the same to whoever has to do something about it.
  }
  throw new Surprise(
    `There is no ${name} in ${file}. Start the gateway in another terminal with: npm start. If it was started with an
    ONCEGATE_DATA_DIR, set the same one here (or set ${variable} to the key it prints).`,
  );
}

async function knowsTheDemo(agent: Client): Promise<void> {
  const answer = await agent.send('GET', '/v1/tools');
  if (answer.status === 401) {
    throw new Surprise(
      `This gateway does not know the demo key: is it another one? Set ONCEGATE_DATA_DIR to the one it was started with;
      its demo-keys.json has the key.`,
    );
  }
  if (answer.status !== 200) throw new Surprise(`The gateway would not list its tools: ${inWords(answer)}`);
  if (!answer.body.tools?.some(({ name }) => name === 'demo.effects')) {
    throw new Surprise('This gateway has no demo tools: start it without ONCEGATE_DEMO=0.');
  }
}
