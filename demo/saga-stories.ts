import { decide, mailsSent, waiting } from './authority-stories.ts';
import { type Answer, type Client, inWords, type SagaStep } from './client.ts';
import type { Narrator } from './narrator.ts';
import { expect, idOf, isProblem, type Stage } from './stage.ts';

/** Long enough for every undo of the demo. */
const WAIT = '?wait=30';

export async function halfWay({ agent, narrator, run }: Stage): Promise<void> {
  const welcome = `${run}-welcome.txt`;
  const plan = `${run}-plan.txt`;
  const reference = `${run}-upgrade`;
  const refunds = await refundsMade(agent);
  await agent.call('files.put', { name: welcome, content: 'Welcome, Ann.' }, { key: `${run}-before` });
  narrator.say(
    `An agent moves Ann to a larger plan: two files, a ticket and two payments that only make sense together. So it opens
    a saga and names it with every call. How each call is undone stands in its tool's contract, and is written down
    before the call is sent.`,
  );
  const saga = await open(agent, narrator, `upgrade ${run}`);
  const step = (tool: string, args: object) => agent.call(tool, args, { key: `${run}-${tool}-${++taken}`, saga });
  let taken = 0;

  narrator.asks(`files.put ${welcome}, which says "Welcome, Ann." so far`);
  narrator.answers(worked(await step('files.put', { name: welcome, content: 'Welcome to the large plan, Ann.' })));
  narrator.asks(`files.put ${plan}, which is not there yet`);
  narrator.answers(worked(await step('files.put', { name: plan, content: 'large' })));
  narrator.asks('tickets.create "Move Ann"');
  narrator.answers(worked(await step('tickets.create', { title: 'Move Ann', reference })));
  narrator.asks('payments.charge 45.00 usd');
  const charge = await step('payments.charge', { amount: 4500, currency: 'usd', card: 'card_visa_4242' });
  narrator.answers(`${worked(charge)}: ${idOf(charge)}`);
  narrator.asks('payments.charge 5.00 usd, with another card');
  const declined = await step('payments.charge', { amount: 500, currency: 'usd', card: 'card_declined' });
  narrator.answers(inWords(declined));
  expect(isProblem(declined, 502, 'tool_failed'), 'the card to be declined', inWords(declined));

  narrator.say('Half a job is worse than none. The agent need not remember what it did; it asks for a rollback.');
  narrator.asks('roll the saga back');
  const undone = await agent.send('POST', `/v1/sagas/${saga}/rollback${WAIT}`, { reason: 'the card was declined' });
  expect(undone.body.state === 'rolled_back', 'the saga to be rolled back', told(undone));
  narrator.answers('rolled_back. The last step first:');
  for (const each of (undone.body.steps ?? []).toReversed()) narrator.item(inPlainWords(each));
  await provesUndone(agent, narrator, { charge: idOf(charge), reference, refunds });
  const old = await agent.read<{ content: string }>('files.get', { name: welcome });
  expect(old.content === 'Welcome, Ann.', 'the old content', JSON.stringify(old));
  const gone = await agent.call('files.get', { name: plan });
  expect(isProblem(gone, 502, 'tool_failed'), 'the new file to be gone', inWords(gone));
  narrator.proves('One file says "Welcome, Ann." again, the other is gone.');

  narrator.asks('one more step, although it is over');
  const late = await step('payments.charge', { amount: 100, currency: 'usd', card: 'card_visa_4242' });
  narrator.answers(inWords(late));
  expect(isProblem(late, 409, 'saga_closed'), 'a refusal', inWords(late));
}

export async function parked({ agent, person, narrator, run }: Stage): Promise<void> {
  const reference = `${run}-party`;
  const refunds = await refundsMade(agent);
  const mail = { to: 'ann@example.com', subject: `Your party, ${run}`, body: 'The room is booked.' };
  narrator.say(
    `Another saga, with a mail in it, and nobody can unsend a mail. The agent also says what rests on what: the ticket on
    nothing, the mail on the charge. Without a word each step rests on all before it.`,
  );
  const saga = await open(agent, narrator, `party ${run}`);
  narrator.asks('payments.charge 80.00 usd');
  const charge = await agent.call(
    'payments.charge',
    { amount: 8000, currency: 'usd', card: 'card_visa_4242' },
    { key: `${run}-room`, saga },
  );
  narrator.answers(`${worked(charge)}: ${idOf(charge)}`);
  narrator.asks('tickets.create "Book a room", resting on nothing');
  const ticket = { title: 'Book a room', reference };
  narrator.answers(worked(await agent.call('tickets.create', ticket, { key: reference, saga, restsOn: 'none' })));
  narrator.asks(`mail.send to ${mail.to}, resting on the charge; a person approves it`);
  const sent = await sendApproved({ agent, person }, mail, {
    key: `${run}-party-mail`,
    saga,
    restsOn: charge.txn ?? '',
  });
  narrator.answers(worked(sent));
  const mails = await mailsSent(agent);

  narrator.say('Then the party is called off. A person asks first what a rollback would do:');
  narrator.asks('roll the saga back, dry run');
  const plan = await person.send('POST', `/admin/sagas/${saga}/rollback`, { dryRun: true });
  narrator.answers(`it would end ${plan.body.wouldEnd}:`);
  for (const { tool, does, why, blockedBy, undo } of plan.body.plan ?? [])
    narrator.item(
      `${tool}: ${blockedBy !== null ? 'would have to wait for mail.send' : does === 'undo' ? `would be undone by ${undo.tool}` : `${does} be undone: ${why}`}`,
    );
  expect(plan.body.wouldEnd === 'parked', 'the plan to say that it will park', told(plan));

  narrator.asks('roll the saga back');
  const stuck = await agent.send('POST', `/v1/sagas/${saga}/rollback${WAIT}`, { reason: 'the party is called off' });
  narrator.answers(told(stuck));
  expect(stuck.body.state === 'parked', 'the saga to be parked', told(stuck));
  for (const each of (stuck.body.steps ?? []).toReversed()) narrator.item(inPlainWords(each));
  expect((await refunded(agent, idOf(charge))) === false, 'no refund yet', 'one');
  narrator.say(
    `The gateway does not say rolled_back, for it would not be true. The ticket is closed, as nothing held it up. The
    charge waits: perhaps the mail must be made good first. A person writes to Ann, and says that the mail need not be
    waited for.`,
  );
  narrator.asks('resume, and waive the mail');
  const resumed = await person.send('POST', `/admin/sagas/${saga}/resume${WAIT}`, {
    reason: 'I wrote to Ann',
    waive: [sent.txn],
  });
  narrator.answers(told(resumed));
  await provesUndone(agent, narrator, { charge: idOf(charge), reference, refunds });
  narrator.say(
    'It stays parked, because the mail is still out in the world. The person has seen to it, and closes it.',
  );
  narrator.asks('close');
  const closed = await person.send('POST', `/admin/sagas/${saga}/close`, { reason: 'Ann knows' });
  narrator.answers(told(closed));
  expect(closed.body.state === 'closed', 'the saga to be closed', told(closed));
  expect((await mailsSent(agent)) === mails, 'no further mail', 'one');
  const kept = await person.send('GET', `/admin/sagas/${saga}`);
  const isKept = kept.body.by === 'demo-admin' && kept.body.steps?.some(({ waived }) => waived === true) === true;
  expect(isKept, 'to be told who closed it and what was waived', JSON.stringify(kept.body));
  narrator.proves('The saga keeps who closed it and why, and that the mail was waived. It is still one mail.');
}

async function open(agent: Client, narrator: Narrator, name: string): Promise<string> {
  const opened = await agent.send('POST', '/v1/sagas', { name }, { 'idempotency-key': name.replaceAll(' ', '-') });
  narrator.asks(`open a saga, "${name}"`);
  expect(opened.status === 201 && opened.body.state === 'open', 'an open saga', inWords(opened));
  const saga = opened.body.saga ?? '';
  narrator.answers(`open: ${saga}`);
  return saga;
}

/** A mail is held for a person, in a saga as anywhere. */
async function sendApproved(
  { agent, person }: Pick<Stage, 'agent' | 'person'>,
  mail: object,
  options: { key: string; saga: string; restsOn: string },
): Promise<Answer> {
  const held = await agent.call('mail.send', mail, { ...options, wait: 0 });
  const shown = await waiting(person, held.txn);
  const approved = await decide(person, shown.txn, shown.digest);
  expect(approved.body.state === 'approved', 'the mail to be approved', inWords(approved));
  return agent.call('mail.send', mail, options);
}

/** What the undos of the demo do. */
const DEEDS: Readonly<Record<string, string>> = {
  'payments.refund': 'the money is given back',
  'tickets.close': 'the ticket is closed',
  'files.restore': 'the file is as it was before',
};

/** What became of a step, for somebody who reads it for the first time. */
function inPlainWords({ tool, undo }: SagaStep): string {
  switch (undo.state) {
    case 'done':
      return `${tool}: undone by ${undo.tool}, ${DEEDS[undo.tool ?? ''] ?? 'it is as before'}`;
    case 'skipped':
      return `${tool}: nothing to undo, ${undo.reason}`;
    case 'irreversible':
      return `${tool}: cannot be undone, ${undo.reason}`;
    default:
      return `${tool}: not undone yet${undo.reason === null ? '' : `, ${undo.reason}`}`;
  }
}

async function provesUndone(
  agent: Client,
  narrator: Narrator,
  { charge, reference, refunds }: { charge: string; reference: string; refunds: number },
): Promise<void> {
  expect(await refunded(agent, charge), 'the charge to be given back', 'not');
  expect((await refundsMade(agent)) === refunds + 1, 'one refund', 'more');
  const { tickets } = await agent.read<{ tickets: { state: string }[] }>('tickets.find', { reference });
  expect(tickets.length === 1 && tickets[0]?.state === 'closed', 'one closed ticket', JSON.stringify(tickets));
  narrator.proves('The money is given back, once, and the ticket is closed.');
}

async function refunded(agent: Client, charge: string): Promise<boolean> {
  return (await agent.read<{ refunded: boolean }>('payments.get', { charge })).refunded;
}

async function refundsMade(agent: Client): Promise<number> {
  return (await agent.read<{ payments: { refunds: number } }>('demo.effects', {})).payments.refunds;
}

function worked(answer: Answer): string {
  expect(answer.status === 200, 'the step to succeed', inWords(answer));
  return inWords(answer);
}

function told({ status, body }: Answer): string {
  if (status >= 400) return `${status} ${body.code}: ${body.detail}`;
  return `${body.state ?? ''}${body.reason ? `: ${body.reason}` : ''}`;
}
