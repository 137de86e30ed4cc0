import { isDeepStrictEqual } from 'node:util';
import { showApproval, showBudgetLimit, showDenial, showFreeze } from './authority-stories.ts';
import { formatAnswer } from './client.ts';
import { showParkedRollback, showRollback } from './saga-stories.ts';
import { expect, isProblem, readResultId, type Scenario, type ScenarioContext, verifyChargeCount } from './stage.ts';

/** In the order they are told. A further story is a further function. */
export const SCENARIOS: readonly Scenario[] = [
  { title: 'The same charge, sent twice', tell: showDuplicateCall },
  { title: 'The answer gets lost on the way', tell: showLostAnswer },
  { title: 'A service that cannot tell a repeat', tell: showProbe },
  { title: 'What the rules do not allow', tell: showDenial },
  { title: 'One key, two different wishes', tell: showKeyReuse },
  { title: 'What nobody could take back waits for a person', tell: showApproval },
  { title: 'Too much at once', tell: showBudgetLimit },
  { title: 'The kill switch', tell: showFreeze },
  { title: 'A job that fails half-way is undone', tell: showRollback },
  { title: 'What cannot be undone is said, not hidden', tell: showParkedRollback },
];

async function showDuplicateCall({ agent, narrator, run }: ScenarioContext): Promise<void> {
  const key = `${run}-charge`;
  const charge = { amount: 1250, currency: 'usd', card: 'card_visa_4242', order: `${run}-1` };
  narrator.printText('An agent charges a card, forgets that it did, and does it again with the same key.');
  narrator.printRequest(`payments.charge 12.50 usd for order ${charge.order}, Idempotency-Key: ${key}`);
  const first = await agent.call('payments.charge', charge, { key });
  narrator.printAnswer(`${formatAnswer(first)}: ${readResultId(first)}`);
  expect(first.status === 200 && !first.replayed, 'the first call to succeed', formatAnswer(first));

  narrator.printRequest('the same again, same key');
  const second = await agent.call('payments.charge', charge, { key });
  narrator.printAnswer(`${formatAnswer(second)}: ${readResultId(second)}`);
  expect(second.status === 200 && second.replayed, 'the second answer to be a replay', formatAnswer(second));
  const same = isDeepStrictEqual(second.body.result, first.body.result) && second.txn === first.txn;
  expect(same, 'both answers to be the same', `${readResultId(first)} and ${readResultId(second)}`);
  await verifyChargeCount(agent, narrator, charge.order, 1);
}

async function showLostAnswer({ agent, narrator, run }: ScenarioContext): Promise<void> {
  const charge = { amount: 4900, currency: 'usd', card: 'card_lost_answer', order: `${run}-2` };
  narrator.printText(
    `With this card the payments service takes the money and then breaks the connection. The gateway cannot know whether
    the money moved. It knows that this service recognises a repeat, so it sends the identical request with the
    identical key once more.`,
  );
  narrator.printRequest(`payments.charge 49.00 usd for order ${charge.order}`);
  const answer = await agent.call('payments.charge', charge, { key: `${run}-lost` });
  narrator.printAnswer(`${formatAnswer(answer)} after ${answer.body.attempts} attempts: ${readResultId(answer)}`);
  expect(answer.status === 200, 'the call to succeed', formatAnswer(answer));
  expect(Number(answer.body.attempts) >= 2, 'a second attempt', `${answer.body.attempts} attempt(s)`);
  await verifyChargeCount(agent, narrator, charge.order, 1);
}

async function showProbe({ agent, narrator, run }: ScenarioContext): Promise<void> {
  const ticket = { title: 'lost answer', body: 'The printer is on fire.', reference: `${run}-ticket` };
  narrator.printText(
    `The ticket tracker opens a ticket as often as it is asked to, and loses this answer too. Asking again could open a
    second one, so the gateway waits a second and then looks for the ticket by its reference.`,
  );
  narrator.printRequest(`tickets.create with the reference ${ticket.reference}`);
  const answer = await agent.call('tickets.create', ticket, { key: ticket.reference });
  narrator.printAnswer(`${formatAnswer(answer)}, sent ${formatTimes(Number(answer.body.attempts))}`);
  expect(answer.status === 200, 'the probe to find the ticket', formatAnswer(answer));
  const { tickets } = await agent.read<{ tickets: unknown[] }>('tickets.find', { reference: ticket.reference });
  expect(tickets.length === 1, 'one ticket', `${tickets.length} tickets`);
  narrator.printVerified('The tracker has one ticket with this reference.');
}

async function showKeyReuse({ agent, narrator, run }: ScenarioContext): Promise<void> {
  const key = `${run}-reused`;
  const charge = { amount: 1000, currency: 'usd', card: 'card_visa_4242', order: `${run}-4` };
  narrator.printText('A key stands for one wish. An agent with a bug uses one key for two.');
  narrator.printRequest(`payments.charge 10.00 usd, Idempotency-Key: ${key}`);
  const first = await agent.call('payments.charge', charge, { key });
  narrator.printAnswer(`${formatAnswer(first)}: ${readResultId(first)}`);
  expect(first.status === 200, 'the first call to succeed', formatAnswer(first));
  narrator.printRequest(`payments.charge 20.00 usd, Idempotency-Key: ${key}`);
  const second = await agent.call('payments.charge', { ...charge, amount: 2000 }, { key });
  narrator.printAnswer(formatAnswer(second));
  expect(isProblem(second, 422, 'key_reused'), 'a refusal', formatAnswer(second));
  await verifyChargeCount(agent, narrator, charge.order, 1);
}

function formatTimes(count: number): string {
  return count === 1 ? 'once' : `${count} times`;
}
