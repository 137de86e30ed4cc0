import { type DemoAnswer, type DemoClient, type DemoSagaStep, formatAnswer } from './client.ts';
import { approveCall, countMailsSent, findPendingApproval } from './control-scenarios.ts';
import { expect, isProblem, readResultId, type ScenarioContext } from './scenario.ts';
import type { TerminalPrinter } from './terminal-printer.ts';

/** In seconds; longer than all undos of the demo take. */
const WAIT_QUERY = '?wait=30';

export async function showRollback({ agent, printer, runId }: ScenarioContext): Promise<void> {
  const welcome = `${runId}-welcome.txt`;
  const plan = `${runId}-plan.txt`;
  const reference = `${runId}-upgrade`;
  const refunds = await countRefunds(agent);
  await agent.call('files.put', { name: welcome, content: 'Welcome, Ann.' }, { key: `${runId}-before` });
  printer.printText(
    `An agent moves Ann to a larger plan: two files, a ticket and two payments that belong together. So it opens a saga
    and makes every call in it. The contract of each tool says how to undo a call. The gateway stores the undo before it
    sends the call.`,
  );
  const saga = await openSaga(agent, printer, `upgrade ${runId}`);
  const step = (tool: string, args: object) => agent.call(tool, args, { key: `${runId}-${tool}-${++stepCount}`, saga });
  let stepCount = 0;

  printer.printRequest(`files.put ${welcome}, which now says "Welcome, Ann."`);
  printer.printAnswer(
    requireSuccess(await step('files.put', { name: welcome, content: 'Welcome to the large plan, Ann.' })),
  );
  printer.printRequest(`files.put ${plan}, which does not exist yet`);
  printer.printAnswer(requireSuccess(await step('files.put', { name: plan, content: 'large' })));
  printer.printRequest('tickets.create "Move Ann"');
  printer.printAnswer(requireSuccess(await step('tickets.create', { title: 'Move Ann', reference })));
  printer.printRequest('payments.charge 45.00 usd');
  const charge = await step('payments.charge', { amount: 4500, currency: 'usd', card: 'card_visa_4242' });
  printer.printAnswer(`${requireSuccess(charge)}: ${readResultId(charge)}`);
  printer.printRequest('payments.charge 5.00 usd, with another card');
  const declined = await step('payments.charge', { amount: 500, currency: 'usd', card: 'card_declined' });
  printer.printAnswer(formatAnswer(declined));
  expect(isProblem(declined, 502, 'tool_failed'), 'the card to be declined', formatAnswer(declined));

  printer.printText('Half a job is worse than none. The agent asks for a rollback. It need not know what to undo.');
  printer.printRequest('roll the saga back');
  const undone = await agent.send('POST', `/v1/sagas/${saga}/rollback${WAIT_QUERY}`, {
    reason: 'the card was declined',
  });
  expect(undone.body.state === 'rolled_back', 'the saga to be rolled back', formatSagaAnswer(undone));
  printer.printAnswer('rolled_back, the last step first:');
  for (const each of (undone.body.steps ?? []).toReversed()) printer.printItem(formatUndo(each));
  await verifyUndone(agent, printer, { charge: readResultId(charge), reference, refunds });
  const old = await agent.read<{ content: string }>('files.get', { name: welcome });
  expect(old.content === 'Welcome, Ann.', 'the old content', JSON.stringify(old));
  const gone = await agent.call('files.get', { name: plan });
  expect(isProblem(gone, 502, 'tool_failed'), 'the new file to be gone', formatAnswer(gone));
  printer.printVerified('One file says "Welcome, Ann." again, the other one is gone.');

  printer.printRequest('one more step in the same saga');
  const late = await step('payments.charge', { amount: 100, currency: 'usd', card: 'card_visa_4242' });
  printer.printAnswer(formatAnswer(late));
  expect(isProblem(late, 409, 'saga_closed'), 'a refusal', formatAnswer(late));
}

export async function showParkedRollback({ agent, person, printer, runId }: ScenarioContext): Promise<void> {
  const reference = `${runId}-party`;
  const refunds = await countRefunds(agent);
  const mail = { to: 'ann@example.com', subject: `Your party, ${runId}`, body: 'The room is booked.' };
  printer.printText(
    `This saga has a mail in it, and nobody can unsend a mail. The agent also names dependencies: the ticket depends on
    nothing, the mail depends on the charge. By default a step depends on all earlier steps.`,
  );
  const saga = await openSaga(agent, printer, `party ${runId}`);
  printer.printRequest('payments.charge 80.00 usd');
  const charge = await agent.call(
    'payments.charge',
    { amount: 8000, currency: 'usd', card: 'card_visa_4242' },
    { key: `${runId}-room`, saga },
  );
  printer.printAnswer(`${requireSuccess(charge)}: ${readResultId(charge)}`);
  printer.printRequest('tickets.create "Book a room", depends on nothing');
  const ticket = { title: 'Book a room', reference };
  printer.printAnswer(
    requireSuccess(await agent.call('tickets.create', ticket, { key: reference, saga, dependsOn: 'none' })),
  );
  printer.printRequest(`mail.send to ${mail.to}, depends on the charge; a person approves it`);
  const sent = await sendApprovedMail({ agent, person }, mail, {
    key: `${runId}-party-mail`,
    saga,
    dependsOn: charge.txn ?? '',
  });
  printer.printAnswer(requireSuccess(sent));
  const mails = await countMailsSent(agent);

  printer.printText('Then the party is cancelled. First a person looks at what a rollback would do:');
  printer.printRequest('roll the saga back, dry run');
  const plan = await person.send('POST', `/admin/sagas/${saga}/rollback`, { dryRun: true });
  printer.printAnswer(`the saga would end ${plan.body.wouldEnd}:`);
  for (const { tool, does, why, blockedBy, undo } of plan.body.plan ?? [])
    printer.printItem(
      `${tool}: ${blockedBy !== null ? 'would wait for mail.send' : does === 'undo' ? `would be undone by ${undo.tool}` : `${does} be undone: ${why}`}`,
    );
  expect(plan.body.wouldEnd === 'parked', 'a plan that ends parked', formatSagaAnswer(plan));
  const ticketPlan = plan.body.plan?.find(({ tool }) => tool === 'tickets.create');
  expect(ticketPlan?.blockedBy === null, 'a ticket that depends on nothing', formatSagaAnswer(plan));

  printer.printRequest('roll the saga back');
  const parked = await agent.send('POST', `/v1/sagas/${saga}/rollback${WAIT_QUERY}`, {
    reason: 'the party is cancelled',
  });
  printer.printAnswer(formatSagaAnswer(parked));
  expect(parked.body.state === 'parked', 'the saga to be parked', formatSagaAnswer(parked));
  for (const each of (parked.body.steps ?? []).toReversed()) printer.printItem(formatUndo(each));
  expect((await isRefunded(agent, readResultId(charge))) === false, 'no refund yet', 'one');
  printer.printText(
    `The saga is parked, not rolled back, because the mail is still sent. The ticket is closed, because nothing depends on
    it. The charge waits, because the mail depends on it. A person writes to Ann, and tells the gateway not to wait for
    the mail.`,
  );
  printer.printRequest('resume, and waive the mail');
  const resumed = await person.send('POST', `/admin/sagas/${saga}/resume${WAIT_QUERY}`, {
    reason: 'I wrote to Ann',
    waive: [sent.txn],
  });
  printer.printAnswer(formatSagaAnswer(resumed));
  await verifyUndone(agent, printer, { charge: readResultId(charge), reference, refunds });
  printer.printText(
    'The saga stays parked, because the mail is still sent. The person has handled that, and closes the saga.',
  );
  printer.printRequest('close the saga');
  const closed = await person.send('POST', `/admin/sagas/${saga}/close`, { reason: 'Ann knows' });
  printer.printAnswer(formatSagaAnswer(closed));
  expect(closed.body.state === 'closed', 'the saga to be closed', formatSagaAnswer(closed));
  expect((await countMailsSent(agent)) === mails, 'no further mail', 'one');
  const kept = await person.send('GET', `/admin/sagas/${saga}`);
  const isKept = kept.body.by === 'demo-admin' && kept.body.steps?.some(({ waived }) => waived === true) === true;
  expect(isKept, 'the name of who closed the saga, and the waived step', JSON.stringify(kept.body));
  printer.printVerified('The saga records who closed it and why, and the waived mail. There is still only one mail.');
}

async function openSaga(agent: DemoClient, printer: TerminalPrinter, name: string): Promise<string> {
  const opened = await agent.send('POST', '/v1/sagas', { name }, { 'idempotency-key': name.replaceAll(' ', '-') });
  printer.printRequest(`open a saga, "${name}"`);
  expect(opened.status === 201 && opened.body.state === 'open', 'an open saga', formatAnswer(opened));
  const saga = opened.body.saga ?? '';
  printer.printAnswer(`open: ${saga}`);
  return saga;
}

/** A mail waits for approval, also as a step of a saga. */
async function sendApprovedMail(
  { agent, person }: Pick<ScenarioContext, 'agent' | 'person'>,
  mail: object,
  options: { key: string; saga: string; dependsOn: string },
): Promise<DemoAnswer> {
  const held = await agent.call('mail.send', mail, { ...options, wait: 0 });
  const shown = await findPendingApproval(person, held.txn);
  const approved = await approveCall(person, shown.txn, shown.digest);
  expect(approved.body.state === 'approved', 'the mail to be approved', formatAnswer(approved));
  return agent.call('mail.send', mail, options);
}

const UNDO_DESCRIPTIONS: Readonly<Record<string, string>> = {
  'payments.refund': 'the money is refunded',
  'tickets.close': 'the ticket is closed',
  'files.restore': 'the file is as it was before',
};

/** Describes the undo of a step in words for a newcomer. */
function formatUndo({ tool, undo }: DemoSagaStep): string {
  switch (undo.state) {
    case 'done':
      return `${tool}: undone by ${undo.tool}, ${UNDO_DESCRIPTIONS[undo.tool ?? ''] ?? 'all is as before'}`;
    case 'skipped':
      return `${tool}: nothing to undo, ${undo.reason}`;
    case 'irreversible':
      return `${tool}: cannot be undone, ${undo.reason}`;
    default:
      return `${tool}: not undone yet${undo.reason === null ? '' : `, ${undo.reason}`}`;
  }
}

async function verifyUndone(
  agent: DemoClient,
  printer: TerminalPrinter,
  { charge, reference, refunds }: { charge: string; reference: string; refunds: number },
): Promise<void> {
  expect(await isRefunded(agent, charge), 'the charge to be refunded', 'no refund');
  expect((await countRefunds(agent)) === refunds + 1, 'one refund', 'more');
  const { tickets } = await agent.read<{ tickets: { state: string }[] }>('tickets.find', { reference });
  expect(tickets.length === 1 && tickets[0]?.state === 'closed', 'one closed ticket', JSON.stringify(tickets));
  printer.printVerified('The money is refunded once, and the ticket is closed.');
}

async function isRefunded(agent: DemoClient, charge: string): Promise<boolean> {
  return (await agent.read<{ refunded: boolean }>('payments.get', { charge })).refunded;
}

async function countRefunds(agent: DemoClient): Promise<number> {
  return (await agent.read<{ payments: { refunds: number } }>('demo.effects', {})).payments.refunds;
}

function requireSuccess(answer: DemoAnswer): string {
  expect(answer.status === 200, 'the step to succeed', formatAnswer(answer));
  return formatAnswer(answer);
}

function formatSagaAnswer({ status, body }: DemoAnswer): string {
  if (status >= 400) return `${status} ${body.code}: ${body.detail}`;
  return `${body.state ?? ''}${body.reason ? `: ${body.reason}` : ''}`;
}
