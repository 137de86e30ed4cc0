import { isDeepStrictEqual } from 'node:util';
import { formatAnswer } from './client.ts';
import { showApproval, showBudgetLimit, showDenial, showFreeze } from './control-scenarios.ts';
import { showParkedRollback, showRollback } from './saga-scenarios.ts';
import { expect, isProblem, readResultId, type Scenario, type ScenarioContext, verifyChargeCount } from './scenario.ts';

/** In the order of the demo. */
export const SCENARIOS: readonly Scenario[] = [
  { title: 'The same charge, sent twice', play: showDuplicateCall },
  { title: 'An answer is lost on the way', play: showLostAnswer },
  { title: 'A service that does not recognise a repeat', play: showProbe },
  { title: 'A call that the rules do not allow', play: showDenial },
  { title: 'One key for two different calls', play: showKeyReuse },
  { title: 'An irreversible call waits for a person', play: showApproval },
  { title: 'Over the budget', play: showBudgetLimit },
  { title: 'The kill switch', play: showFreeze },
  { title: 'A job that fails half-way is rolled back', play: showRollback },
  { title: 'A rollback that cannot undo everything', play: showParkedRollback },
];

async function showDuplicateCall({ agent, printer, runId }: ScenarioContext): Promise<void> {
  const key = `${runId}-charge`;
  const charge = { amount: 1250, currency: 'usd', card: 'card_visa_4242', order: `${runId}-1` };
  printer.printText('An agent charges a card, forgets it, and charges again with the same key.');
  printer.printRequest(`payments.charge 12.50 usd for order ${charge.order}, Idempotency-Key: ${key}`);
  const first = await agent.call('payments.charge', charge, { key });
  printer.printAnswer(`${formatAnswer(first)}: ${readResultId(first)}`);
  expect(first.status === 200 && !first.replayed, 'the first call to succeed', formatAnswer(first));

  printer.printRequest('the same call with the same key');
  const second = await agent.call('payments.charge', charge, { key });
  printer.printAnswer(`${formatAnswer(second)}: ${readResultId(second)}`);
  expect(second.status === 200 && second.replayed, 'the second answer to be a replay', formatAnswer(second));
  const isSame = isDeepStrictEqual(second.body.result, first.body.result) && second.txn === first.txn;
  expect(isSame, 'both answers to be the same', `${readResultId(first)} and ${readResultId(second)}`);
  await verifyChargeCount(agent, printer, charge.order, 1);
}

async function showLostAnswer({ agent, printer, runId }: ScenarioContext): Promise<void> {
  const charge = { amount: 4900, currency: 'usd', card: 'card_lost_answer', order: `${runId}-2` };
  printer.printText(
    `With this card the payments service charges, and then breaks the connection. The gateway cannot know whether it
    charged. But this service recognises a repeat by its key, so the gateway sends the same request with the same key
    again.`,
  );
  printer.printRequest(`payments.charge 49.00 usd for order ${charge.order}`);
  const answer = await agent.call('payments.charge', charge, { key: `${runId}-lost` });
  printer.printAnswer(`${formatAnswer(answer)} after ${answer.body.attempts} attempts: ${readResultId(answer)}`);
  expect(answer.status === 200, 'the call to succeed', formatAnswer(answer));
  expect(Number(answer.body.attempts) >= 2, 'a second attempt', `${answer.body.attempts} attempt(s)`);
  await verifyChargeCount(agent, printer, charge.order, 1);
}

async function showProbe({ agent, printer, runId }: ScenarioContext): Promise<void> {
  const ticket = { title: 'lost answer', body: 'The printer is on fire.', reference: `${runId}-ticket` };
  printer.printText(
    `The ticket tracker opens a ticket on every request, and this answer is lost too. A second request could open a second
    ticket. So the gateway waits a second, and then looks for the ticket by its reference.`,
  );
  printer.printRequest(`tickets.create with the reference ${ticket.reference}`);
  const answer = await agent.call('tickets.create', ticket, { key: ticket.reference });
  printer.printAnswer(`${formatAnswer(answer)}, sent ${formatTimes(Number(answer.body.attempts))}`);
  expect(answer.status === 200, 'the probe to find the ticket', formatAnswer(answer));
  const { tickets } = await agent.read<{ tickets: unknown[] }>('tickets.find', { reference: ticket.reference });
  expect(tickets.length === 1, 'one ticket', `${tickets.length} tickets`);
  printer.printVerified('The tracker has one ticket with this reference.');
}

async function showKeyReuse({ agent, printer, runId }: ScenarioContext): Promise<void> {
  const key = `${runId}-reused`;
  const charge = { amount: 1000, currency: 'usd', card: 'card_visa_4242', order: `${runId}-4` };
  printer.printText('A key belongs to one call. An agent with a bug uses one key for two calls.');
  printer.printRequest(`payments.charge 10.00 usd, Idempotency-Key: ${key}`);
  const first = await agent.call('payments.charge', charge, { key });
  printer.printAnswer(`${formatAnswer(first)}: ${readResultId(first)}`);
  expect(first.status === 200, 'the first call to succeed', formatAnswer(first));
  printer.printRequest(`payments.charge 20.00 usd, Idempotency-Key: ${key}`);
  const second = await agent.call('payments.charge', { ...charge, amount: 2000 }, { key });
  printer.printAnswer(formatAnswer(second));
  expect(isProblem(second, 422, 'key_reused'), 'a refusal', formatAnswer(second));
  await verifyChargeCount(agent, printer, charge.order, 1);
}

function formatTimes(count: number): string {
  return count === 1 ? 'once' : `${count} times`;
}
