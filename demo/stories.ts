import { isDeepStrictEqual } from 'node:util';
import { type Answer, type Client, inWords, Surprise } from './client.ts';
import type { Narrator } from './narrator.ts';

/** What a story is told with. Names that hold `run` are new each time, so that the stories can be told again. */
export interface Stage {
  readonly agent: Client;
  /** Holds the key of `demo-admin`. */
  readonly person: Client;
  readonly narrator: Narrator;
  readonly run: string;
}

export interface Story {
  readonly title: string;
  tell(stage: Stage): Promise<void>;
}

/** In the order they are told. A further story is a further function. */
export const STORIES: readonly Story[] = [
  { title: 'The same charge, sent twice', tell: sentTwice },
  { title: 'The answer gets lost on the way', tell: lostAnswer },
  { title: 'A service that cannot tell a repeat', tell: probed },
  { title: 'What the rules do not allow', tell: denied },
  { title: 'What nobody could take back waits for a person', tell: held },
  { title: 'One key, two different wishes', tell: keyReused },
];

async function sentTwice({ agent, narrator, run }: Stage): Promise<void> {
  const key = `${run}-charge`;
  const charge = { amount: 1250, currency: 'usd', card: 'card_visa_4242', order: `${run}-1` };
  narrator.say('An agent charges a card, forgets that it did, and does it again with the same key.');
  narrator.asks(`payments.charge 12.50 usd for order ${charge.order}, Idempotency-Key: ${key}`);
  const first = await agent.call('payments.charge', charge, { key });
  narrator.answers(`${inWords(first)}: ${idOf(first)}`);
  expect(first.status === 200 && !first.replayed, 'the first call to succeed', inWords(first));

  narrator.asks('the same again, same key');
  const second = await agent.call('payments.charge', charge, { key });
  narrator.answers(`${inWords(second)}: ${idOf(second)}`);
  expect(second.status === 200 && second.replayed, 'the second answer to be a replay', inWords(second));
  const same = isDeepStrictEqual(second.body.result, first.body.result) && second.txn === first.txn;
  expect(same, 'both answers to be the same', `${idOf(first)} and ${idOf(second)}`);
  await provesCharges(agent, narrator, charge.order, 1);
}

async function lostAnswer({ agent, narrator, run }: Stage): Promise<void> {
  const charge = { amount: 4900, currency: 'usd', card: 'card_lost_answer', order: `${run}-2` };
  narrator.say(
    `With this card the payments service takes the money and then breaks the connection. The gateway cannot know whether
    the money moved. It knows that this service recognises a repeat, so it sends the identical request with the
    identical key once more.`,
  );
  narrator.asks(`payments.charge 49.00 usd for order ${charge.order}`);
  const answer = await agent.call('payments.charge', charge, { key: `${run}-lost` });
  narrator.answers(`${inWords(answer)} after ${answer.body.attempts} attempts: ${idOf(answer)}`);
  expect(answer.status === 200, 'the call to succeed', inWords(answer));
  expect(Number(answer.body.attempts) >= 2, 'a second attempt', `${answer.body.attempts} attempt(s)`);
  await provesCharges(agent, narrator, charge.order, 1);
}

async function probed({ agent, narrator, run }: Stage): Promise<void> {
  const ticket = { title: 'lost answer', body: 'The printer is on fire.', reference: `${run}-ticket` };
  narrator.say(
    `The ticket tracker opens a ticket as often as it is asked to, and loses this answer too. Asking again could open a
    second one, so the gateway waits a second and then looks for the ticket by its reference.`,
  );
  narrator.asks(`tickets.create with the reference ${ticket.reference}`);
  const answer = await agent.call('tickets.create', ticket, { key: ticket.reference });
  narrator.answers(`${inWords(answer)}, sent ${times(Number(answer.body.attempts))}`);
  expect(answer.status === 200, 'the probe to find the ticket', inWords(answer));
  const { tickets } = await agent.read<{ tickets: unknown[] }>('tickets.find', { reference: ticket.reference });
  expect(tickets.length === 1, 'one ticket', `${tickets.length} tickets`);
  narrator.proves('The tracker has one ticket with this reference.');
}

async function denied({ agent, narrator, run }: Stage): Promise<void> {
  const file = { name: `${run}.txt`, content: 'Please keep me.' };
  const charge = { amount: 99_900_00, currency: 'usd', card: 'card_visa_4242', order: `${run}-3` };
  narrator.say('The rules are in policies/demo.yaml. This agent may write files but never delete one.');
  const put = await agent.call('files.put', file, { key: `${run}-put` });
  expect(put.status === 200, 'the file to be written', inWords(put));
  narrator.asks(`files.delete ${file.name}`);
  const deletion = await agent.call('files.delete', { name: file.name }, { key: `${run}-delete` });
  narrator.answers(inWords(deletion));
  expect(isProblem(deletion, 403, 'denied'), 'a denial', inWords(deletion));
  const kept = await agent.read<{ content: string }>('files.get', { name: file.name });
  expect(kept.content === file.content, 'the file to be there', JSON.stringify(kept));
  narrator.proves('The file is still there.');

  narrator.say('It may charge cards too, but only small amounts:');
  narrator.asks('payments.charge 99,900.00 usd');
  const large = await agent.call('payments.charge', charge, { key: `${run}-large` });
  narrator.answers(inWords(large));
  expect(isProblem(large, 403, 'denied'), 'a denial', inWords(large));
  await provesCharges(agent, narrator, charge.order, 0);
}

async function held({ agent, person, narrator, run }: Stage): Promise<void> {
  const mail = { to: 'ann@example.com', subject: `Hello from ${run}`, body: 'Shall we meet at noon?' };
  const before = await mailsSent(agent);
  narrator.say(
    `A mail cannot be taken back, and the mail server could not even tell whether it went out. So the gateway holds the
    call until a person approves it. The agent need not wait: it says so with Prefer: wait=0.`,
  );
  narrator.asks(`mail.send to ${mail.to}`);
  const answer = await agent.call('mail.send', mail, { key: `${run}-mail`, wait: 0 });
  narrator.answers(`${inWords(answer)}, transaction ${answer.txn}`);
  expect(answer.status === 202 && answer.state === 'held' && answer.txn !== null, 'a held call', inWords(answer));
  expect((await mailsSent(agent)) === before, 'no mail to be sent', 'one was');
  narrator.proves('No mail was sent.');

  const seen = await person.send('GET', `/admin/calls/${answer.txn}`);
  expect(seen.body.state === 'held', 'a person to see the held call', inWords(seen));
  narrator.proves('A person with the admin key sees it waiting.');
  narrator.say(
    'To approve it takes the key of a person, which no agent has. This time the agent changes its mind before that.',
  );
  narrator.asks('cancel that call');
  const cancelled = await agent.send('POST', `/v1/calls/${answer.txn}/cancel`);
  const now = await agent.send('GET', `/v1/calls/${answer.txn}`);
  expect(now.body.state === 'cancelled', 'the call to be cancelled', `${inWords(cancelled)}, then ${inWords(now)}`);
  narrator.answers(`the call is ${now.body.state}`);
  expect((await mailsSent(agent)) === before, 'no mail to be sent', 'one was');
  narrator.proves('And none will be: withdrawn is final.');
}

async function keyReused({ agent, narrator, run }: Stage): Promise<void> {
  const key = `${run}-reused`;
  const charge = { amount: 1000, currency: 'usd', card: 'card_visa_4242', order: `${run}-4` };
  narrator.say('A key stands for one wish. An agent with a bug uses one key for two.');
  narrator.asks(`payments.charge 10.00 usd, Idempotency-Key: ${key}`);
  const first = await agent.call('payments.charge', charge, { key });
  narrator.answers(`${inWords(first)}: ${idOf(first)}`);
  expect(first.status === 200, 'the first call to succeed', inWords(first));
  narrator.asks(`payments.charge 20.00 usd, Idempotency-Key: ${key}`);
  const second = await agent.call('payments.charge', { ...charge, amount: 2000 }, { key });
  narrator.answers(inWords(second));
  expect(isProblem(second, 422, 'key_reused'), 'a refusal', inWords(second));
  await provesCharges(agent, narrator, charge.order, 1);
}

/** Not what the gateway says but what the payments service has. */
async function provesCharges(agent: Client, narrator: Narrator, order: string, wanted: 0 | 1): Promise<void> {
  const { charges } = await agent.read<{ charges: unknown[] }>('payments.list', { order });
  expect(charges.length === wanted, `${wanted} charge(s) for order ${order}`, `${charges.length}`);
  narrator.proves(`The payments service has ${wanted === 0 ? 'no charge' : 'one charge'} for this order.`);
}

async function mailsSent(agent: Client): Promise<number> {
  const { mail } = await agent.read<{ mail: { sent: number } }>('demo.effects', {});
  return mail.sent;
}

function expect(truth: boolean, wanted: string, got: string): void {
  if (!truth) throw new Surprise(`Expected ${wanted}, but got: ${got}`);
}

function isProblem({ status, body }: Answer, wanted: number, code: string): boolean {
  return status === wanted && body.code === code;
}

function idOf({ body }: Answer): string {
  const result = body.result as { id?: string } | null | undefined;
  return result?.id ?? 'no result';
}

function times(count: number): string {
  return count === 1 ? 'once' : `${count} times`;
}
