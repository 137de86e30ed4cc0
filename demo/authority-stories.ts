import { setTimeout as sleep } from 'node:timers/promises';
import { type Answer, type Approval, type Client, inWords, Surprise } from './client.ts';
import { expect, idOf, isProblem, provesCharges, type Stage } from './stage.ts';

/** More than the demo's longest wait for a budget. */
const MOST_PATIENCE_S = 20;

export async function denied({ agent, narrator, run }: Stage): Promise<void> {
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

  narrator.say('It may charge cards too, but not for any amount:');
  narrator.asks('payments.charge 99,900.00 usd');
  const large = await agent.call('payments.charge', charge, { key: `${run}-large` });
  narrator.answers(inWords(large));
  expect(isProblem(large, 403, 'denied'), 'a denial', inWords(large));
  await provesCharges(agent, narrator, charge.order, 0);
}

export async function held({ agent, person, narrator, run }: Stage): Promise<void> {
  const mail = { to: 'ann@example.com', subject: `Hello from ${run}`, body: 'Shall we meet at noon?' };
  const key = `${run}-mail`;
  const before = await mailsSent(agent);
  narrator.say(
    `A mail cannot be taken back, and the mail server could not even tell whether it went out. So the gateway holds the
    call until a person approves it. The agent need not wait: it says so with Prefer: wait=0.`,
  );
  narrator.asks(`mail.send to ${mail.to}`);
  const answer = await agent.call('mail.send', mail, { key, wait: 0 });
  narrator.answers(`${inWords(answer)}, transaction ${answer.txn}`);
  expect(answer.status === 202 && answer.state === 'held', 'a held call', inWords(answer));
  expect((await mailsSent(agent)) === before, 'no mail to be sent', 'one was');
  narrator.proves('No mail was sent.');

  const shown = await waiting(person, answer.txn);
  narrator.say(
    `A person with the admin key looks at it: ${shown.agent} wants ${shown.tool} to ${shown.args.to} with the subject
    "${shown.args.subject}". That is ${shown.target.method} ${shown.target.url}, and its undo is: ${shown.undo.kind}. All of
    it, with the version of the policies, has one digest, and whoever approves must name it.`,
  );
  narrator.asks('approve something else, with another digest');
  const other = await decide(person, shown.txn, 'f'.repeat(64));
  narrator.answers(inWords(other));
  expect(isProblem(other, 409, 'conflict'), 'a refusal', inWords(other));
  expect((await mailsSent(agent)) === before, 'no mail to be sent', 'one was');

  narrator.asks(`approve it, digest ${shown.digest.slice(0, 12)}…`);
  const approved = await decide(person, shown.txn, shown.digest);
  narrator.answers(inWords(approved));
  expect(approved.body.state === 'approved', 'the call to be approved', inWords(approved));
  await until(async () => (await mailsSent(agent)) === before + 1, 'the mail to be sent');
  narrator.proves('One mail was sent, although the agent has not asked again.');

  narrator.asks('the agent, later: the same call, same key');
  const later = await agent.call('mail.send', mail, { key });
  narrator.answers(`${inWords(later)}: ${idOf(later)}`);
  expect(later.status === 200 && later.replayed, 'the result of the approved call', inWords(later));
  expect((await mailsSent(agent)) === before + 1, 'one mail', 'more');
  narrator.proves('It is still one mail.');
}

export async function tooMuch({ agent, narrator, run }: Stage): Promise<void> {
  const charge = (n: number) => ({ amount: 3000, currency: 'usd', card: 'card_prepaid', order: `${run}-tip-${n}` });
  narrator.say(
    'From this prepaid card the agent may take 50 dollars in any five seconds. It takes 30, and then wants 30 more.',
  );
  narrator.asks('payments.charge 30.00 usd');
  let first = await agent.call('payments.charge', charge(1), { key: `${run}-tip-1` });
  if (isProblem(first, 429, 'over_budget')) {
    narrator.answers(`${inWords(first)} That was the run before this one; ${waitText(first)}`);
    first = await comeBack(first, () => agent.call('payments.charge', charge(1), { key: `${run}-tip-1` }));
  }
  narrator.answers(`${inWords(first)}: ${idOf(first)}`);
  expect(first.status === 200, 'the first charge to succeed', inWords(first));

  narrator.asks('payments.charge 30.00 usd, for another order');
  const second = await agent.call('payments.charge', charge(2), { key: `${run}-tip-2` });
  narrator.answers(`${inWords(second)} Retry-After: ${second.retryAfter}`);
  expect(isProblem(second, 429, 'over_budget'), 'a refusal', inWords(second));
  await provesCharges(agent, narrator, charge(2).order, 0);

  narrator.asks('the first one again, same key');
  const replay = await agent.call('payments.charge', charge(1), { key: `${run}-tip-1` });
  narrator.answers(`${inWords(replay)}: what is done is told for nothing`);
  expect(replay.status === 200 && replay.replayed, 'a replay', inWords(replay));

  narrator.asks(`the second one again, same key; ${waitText(second)}`);
  const third = await comeBack(second, () => agent.call('payments.charge', charge(2), { key: `${run}-tip-2` }));
  narrator.answers(`${inWords(third)}: ${idOf(third)}`);
  expect(third.status === 200 && !third.replayed, 'the charge to succeed now', inWords(third));
  await provesCharges(agent, narrator, charge(2).order, 1);
}

export async function frozen({ agent, person, narrator, run }: Stage): Promise<void> {
  const charge = (n: number) => ({
    amount: 1500,
    currency: 'usd',
    card: 'card_visa_4242',
    order: `${run}-freeze-${n}`,
  });
  const ask = (n: number) => agent.call('payments.charge', charge(n), { key: `${run}-freeze-${n}` });
  narrator.say('An agent behaves oddly. Whoever has the admin key stops it, on every replica at once.');
  const before = await ask(1);
  expect(before.status === 200, 'a charge before', inWords(before));
  narrator.asks('freeze the agent demo');
  const thrown = await person.send('POST', '/admin/agents/demo/freeze', { reason: 'the demo shows the kill switch' });
  expect(thrown.status === 200, 'the agent to be frozen', inWords(thrown));
  try {
    narrator.answers('frozen: every replica has said that it knows');
    narrator.asks('the agent: payments.charge 15.00 usd');
    const refused = await ask(2);
    narrator.answers(inWords(refused));
    expect(isProblem(refused, 503, 'frozen'), 'a refusal', inWords(refused));
    narrator.asks('the agent: a charge from before, same key');
    const replay = await ask(1);
    narrator.answers(`${inWords(replay)}: what happened is still told`);
    expect(replay.status === 200 && replay.replayed, 'a replay', inWords(replay));
  } finally {
    // Whatever went wrong, the next story and the next reader find an agent that can work.
    await person.send('POST', '/admin/agents/demo/unfreeze', { reason: 'the demo is over' });
  }
  narrator.asks('unfreeze it');
  await provesCharges(agent, narrator, charge(2).order, 0);
  narrator.asks('the agent: the refused charge again, same key');
  const after = await ask(2);
  narrator.answers(`${inWords(after)}: ${idOf(after)}`);
  expect(after.status === 200 && !after.replayed, 'the charge to go through', inWords(after));
  await provesCharges(agent, narrator, charge(2).order, 1);
}

/** What a person is shown of this call. Newest first, so it is on the first page. */
export async function waiting(person: Client, txn: string | null): Promise<Approval> {
  const list = await person.send('GET', '/admin/approvals?state=pending');
  const found = list.body.items?.find((approval) => approval.txn === txn);
  if (found === undefined) throw new Surprise(`Expected a person to see the held call, but got: ${inWords(list)}`);
  return found;
}

export function decide(person: Client, txn: string, digest: string): Promise<Answer> {
  return person.send('POST', `/admin/approvals/${txn}/approve`, { digest, reason: 'the demo says so' });
}

/** Asks again when the gateway said that it would help. */
async function comeBack(refused: Answer, again: () => Promise<Answer>): Promise<Answer> {
  const { retryAfter } = refused;
  expect(retryAfter > 0 && retryAfter <= MOST_PATIENCE_S, 'to be told when to come back', `Retry-After: ${retryAfter}`);
  await sleep(retryAfter * 1_000);
  return again();
}

function waitText({ retryAfter }: Answer): string {
  return `it waits ${retryAfter === 1 ? 'a second' : `${retryAfter} seconds`}, as it was told to.`;
}

async function until(isSo: () => Promise<boolean>, wanted: string): Promise<void> {
  for (let tries = 0; tries < 100; tries += 1) {
    if (await isSo()) return;
    await sleep(100);
  }
  throw new Surprise(`Expected ${wanted}, but it was not within 10 seconds`);
}

export async function mailsSent(agent: Client): Promise<number> {
  const { mail } = await agent.read<{ mail: { sent: number } }>('demo.effects', {});
  return mail.sent;
}
