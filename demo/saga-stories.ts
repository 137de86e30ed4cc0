import { approveCall, countMailsSent, findPendingApproval } from './authority-stories.ts';
import { type DemoAnswer, type DemoClient, type DemoSagaStep, formatAnswer } from './client.ts';
import type { TerminalPrinter } from './narrator.ts';
import { expect, isProblem, readResultId, type ScenarioContext } from './stage.ts';

/** Long enough for every undo of the demo. */
const WAIT_QUERY = '?wait=30';

export async function showRollback({ agent, narrator, run }: ScenarioContext): Promise<void> {
  const welcome = `${run}-welcome.txt`;
  const plan = `${run}-plan.txt`;
  const reference = `${run}-upgrade`;
  const refunds = await countRefunds(agent);
  await agent.call('files.put', { name: welcome, content: 'Welcome, Ann.' }, { key: `${run}-before` });
  narrator.printText(
    `An agent moves Ann to a larger plan: two files, a ticket and two payments that only make sense together. So it opens
    a saga and names it with every call. How each call is undone stands in its tool's contract, and is written down
    before the call is sent.`,
  );
  const saga = await openSaga(agent, narrator, `upgrade ${run}`);
  const step = (tool: string, args: object) => agent.call(tool, args, { key: `${run}-${tool}-${++taken}`, saga });
  let taken = 0;

  narrator.printRequest(`files.put ${welcome}, which says "Welcome, Ann." so far`);
  narrator.printAnswer(
    requireSuccess(await step('files.put', { name: welcome, content: 'Welcome to the large plan, Ann.' })),
  );
  narrator.printRequest(`files.put ${plan}, which is not there yet`);
  narrator.printAnswer(requireSuccess(await step('files.put', { name: plan, content: 'large' })));
  narrator.printRequest('tickets.create "Move Ann"');
  narrator.printAnswer(requireSuccess(await step('tickets.create', { title: 'Move Ann', reference })));
  narrator.printRequest('payments.charge 45.00 usd');
  const charge = await step('payments.charge', { amount: 4500, currency: 'usd', card: 'card_visa_4242' });
  narrator.printAnswer(`${requireSuccess(charge)}: ${readResultId(charge)}`);
  narrator.printRequest('payments.charge 5.00 usd, with another card');
  const declined = await step('payments.charge', { amount: 500, currency: 'usd', card: 'card_declined' });
  narrator.printAnswer(formatAnswer(declined));
  expect(isProblem(declined, 502, 'tool_failed'), 'the card to be declined', formatAnswer(declined));

  narrator.printText('Half a job is worse than none. The agent need not remember what it did; it asks for a rollback.');
  narrator.printRequest('roll the saga back');
  const undone = await agent.send('POST', `/v1/sagas/${saga}/rollback${WAIT_QUERY}`, {
    reason: 'the card was declined',
  });
  expect(undone.body.state === 'rolled_back', 'the saga to be rolled back', formatSagaAnswer(undone));
  narrator.printAnswer('rolled_back. The last step first:');
  for (const each of (undone.body.steps ?? []).toReversed()) narrator.printItem(formatUndo(each));
  await verifyUndone(agent, narrator, { charge: readResultId(charge), reference, refunds });
  const old = await agent.read<{ content: string }>('files.get', { name: welcome });
  expect(old.content === 'Welcome, Ann.', 'the old content', JSON.stringify(old));
  const gone = await agent.call('files.get', { name: plan });
  expect(isProblem(gone, 502, 'tool_failed'), 'the new file to be gone', formatAnswer(gone));
  narrator.printVerified('One file says "Welcome, Ann." again, the other is gone.');

  narrator.printRequest('one more step, although it is over');
  const late = await step('payments.charge', { amount: 100, currency: 'usd', card: 'card_visa_4242' });
  narrator.printAnswer(formatAnswer(late));
  expect(isProblem(late, 409, 'saga_closed'), 'a refusal', formatAnswer(late));
}

export async function showParkedRollback({ agent, person, narrator, run }: ScenarioContext): Promise<void> {
  const reference = `${run}-party`;
  const refunds = await countRefunds(agent);
  const mail = { to: 'ann@example.com', subject: `Your party, ${run}`, body: 'The room is booked.' };
  narrator.printText(
    `Another saga, with a mail in it, and nobody can unsend a mail. The agent also says what rests on what: the ticket on
    nothing, the mail on the charge. Without a word each step rests on all before it.`,
  );
  const saga = await openSaga(agent, narrator, `party ${run}`);
  narrator.printRequest('payments.charge 80.00 usd');
  const charge = await agent.call(
    'payments.charge',
    { amount: 8000, currency: 'usd', card: 'card_visa_4242' },
    { key: `${run}-room`, saga },
  );
  narrator.printAnswer(`${requireSuccess(charge)}: ${readResultId(charge)}`);
  narrator.printRequest('tickets.create "Book a room", resting on nothing');
  const ticket = { title: 'Book a room', reference };
  narrator.printAnswer(
    requireSuccess(await agent.call('tickets.create', ticket, { key: reference, saga, restsOn: 'none' })),
  );
  narrator.printRequest(`mail.send to ${mail.to}, resting on the charge; a person approves it`);
  const sent = await sendApprovedMail({ agent, person }, mail, {
    key: `${run}-party-mail`,
    saga,
    restsOn: charge.txn ?? '',
  });
  narrator.printAnswer(requireSuccess(sent));
  const mails = await countMailsSent(agent);

  narrator.printText('Then the party is called off. A person asks first what a rollback would do:');
  narrator.printRequest('roll the saga back, dry run');
  const plan = await person.send('POST', `/admin/sagas/${saga}/rollback`, { dryRun: true });
  narrator.printAnswer(`it would end ${plan.body.wouldEnd}:`);
  for (const { tool, does, why, blockedBy, undo } of plan.body.plan ?? [])
    narrator.printItem(
      `${tool}: ${blockedBy !== null ? 'would have to wait for mail.send' : does === 'undo' ? `would be undone by ${undo.tool}` : `${does} be undone: ${why}`}`,
    );
  expect(plan.body.wouldEnd === 'parked', 'the plan to say that it will park', formatSagaAnswer(plan));

  narrator.printRequest('roll the saga back');
  const stuck = await agent.send('POST', `/v1/sagas/${saga}/rollback${WAIT_QUERY}`, {
    reason: 'the party is called off',
  });
  narrator.printAnswer(formatSagaAnswer(stuck));
  expect(stuck.body.state === 'parked', 'the saga to be parked', formatSagaAnswer(stuck));
  for (const each of (stuck.body.steps ?? []).toReversed()) narrator.printItem(formatUndo(each));
  expect((await isRefunded(agent, readResultId(charge))) === false, 'no refund yet', 'one');
  narrator.printText(
    `The gateway does not say rolled_back, for it would not be true. The ticket is closed, as nothing held it up. The
    charge waits: perhaps the mail must be made good first. A person writes to Ann, and says that the mail need not be
    waited for.`,
  );
  narrator.printRequest('resume, and waive the mail');
  const resumed = await person.send('POST', `/admin/sagas/${saga}/resume${WAIT_QUERY}`, {
    reason: 'I wrote to Ann',
    waive: [sent.txn],
  });
  narrator.printAnswer(formatSagaAnswer(resumed));
  await verifyUndone(agent, narrator, { charge: readResultId(charge), reference, refunds });
  narrator.printText(
    'It stays parked, because the mail is still out in the world. The person has seen to it, and closes it.',
  );
  narrator.printRequest('close');
  const closed = await person.send('POST', `/admin/sagas/${saga}/close`, { reason: 'Ann knows' });
  narrator.printAnswer(formatSagaAnswer(closed));
  expect(closed.body.state === 'closed', 'the saga to be closed', formatSagaAnswer(closed));
  expect((await countMailsSent(agent)) === mails, 'no further mail', 'one');
  const kept = await person.send('GET', `/admin/sagas/${saga}`);
  const isKept = kept.body.by === 'demo-admin' && kept.body.steps?.some(({ waived }) => waived === true) === true;
  expect(isKept, 'to be told who closed it and what was waived', JSON.stringify(kept.body));
  narrator.printVerified('The saga keeps who closed it and why, and that the mail was waived. It is still one mail.');
}

async function openSaga(agent: DemoClient, narrator: TerminalPrinter, name: string): Promise<string> {
  const opened = await agent.send('POST', '/v1/sagas', { name }, { 'idempotency-key': name.replaceAll(' ', '-') });
  narrator.printRequest(`open a saga, "${name}"`);
  expect(opened.status === 201 && opened.body.state === 'open', 'an open saga', formatAnswer(opened));
  const saga = opened.body.saga ?? '';
  narrator.printAnswer(`open: ${saga}`);
  return saga;
}

/** A mail is held for a person, in a saga as anywhere. */
async function sendApprovedMail(
  { agent, person }: Pick<ScenarioContext, 'agent' | 'person'>,
  mail: object,
  options: { key: string; saga: string; restsOn: string },
): Promise<DemoAnswer> {
  const held = await agent.call('mail.send', mail, { ...options, wait: 0 });
  const shown = await findPendingApproval(person, held.txn);
  const approved = await approveCall(person, shown.txn, shown.digest);
  expect(approved.body.state === 'approved', 'the mail to be approved', formatAnswer(approved));
  return agent.call('mail.send', mail, options);
}

/** What the undos of the demo do. */
const UNDO_DESCRIPTIONS: Readonly<Record<string, string>> = {
  'payments.refund': 'the money is given back',
  'tickets.close': 'the ticket is closed',
  'files.restore': 'the file is as it was before',
};

/** What became of a step, for somebody who reads it for the first time. */
function formatUndo({ tool, undo }: DemoSagaStep): string {
  switch (undo.state) {
    case 'done':
      return `${tool}: undone by ${undo.tool}, ${UNDO_DESCRIPTIONS[undo.tool ?? ''] ?? 'it is as before'}`;
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
  narrator: TerminalPrinter,
  { charge, reference, refunds }: { charge: string; reference: string; refunds: number },
): Promise<void> {
  expect(await isRefunded(agent, charge), 'the charge to be given back', 'not');
  expect((await countRefunds(agent)) === refunds + 1, 'one refund', 'more');
  const { tickets } = await agent.read<{ tickets: { state: string }[] }>('tickets.find', { reference });
  expect(tickets.length === 1 && tickets[0]?.state === 'closed', 'one closed ticket', JSON.stringify(tickets));
  narrator.printVerified('The money is given back, once, and the ticket is closed.');
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
