import { isDeepStrictEqual } from 'node:util';
import { denied, frozen, held, tooMuch } from './authority-stories.ts';
import { inWords } from './client.ts';
import { halfWay, parked } from './saga-stories.ts';
import { expect, idOf, isProblem, provesCharges, type Stage, type Story } from './stage.ts';

/** In the order they are told. A further story is a further function. */
export const STORIES: readonly Story[] = [
  { title: 'The same charge, sent twice', tell: sentTwice },
  { title: 'The answer gets lost on the way', tell: lostAnswer },
  { title: 'A service that cannot tell a repeat', tell: probed },
  { title: 'What the rules do not allow', tell: denied },
  { title: 'One key, two different wishes', tell: keyReused },
  { title: 'What nobody could take back waits for a person', tell: held },
  { title: 'Too much at once', tell: tooMuch },
  { title: 'The kill switch', tell: frozen },
  { title: 'A job that fails half-way is undone', tell: halfWay },
  { title: 'What cannot be undone is said, not hidden', tell: parked },
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

function times(count: number): string {
  return count === 1 ? 'once' : `${count} times`;
}
