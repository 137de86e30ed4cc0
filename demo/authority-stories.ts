import { setTimeout as sleep } from 'node:timers/promises';
import { type DemoAnswer, type DemoApproval, type DemoClient, DemoError, formatAnswer } from './client.ts';
import { expect, isProblem, readResultId, type ScenarioContext, verifyChargeCount } from './stage.ts';

/** More than the demo's longest wait for a budget. */
const MAX_RETRY_AFTER_S = 20;

export async function showDenial({ agent, narrator, run }: ScenarioContext): Promise<void> {
  const file = { name: `${run}.txt`, content: 'Please keep me.' };
  const charge = { amount: 99_900_00, currency: 'usd', card: 'card_visa_4242', order: `${run}-3` };
  narrator.printText('The rules are in policies/demo.yaml. This agent may write files but never delete one.');
  const put = await agent.call('files.put', file, { key: `${run}-put` });
  expect(put.status === 200, 'the file to be written', formatAnswer(put));
  narrator.printRequest(`files.delete ${file.name}`);
  const deletion = await agent.call('files.delete', { name: file.name }, { key: `${run}-delete` });
  narrator.printAnswer(formatAnswer(deletion));
  expect(isProblem(deletion, 403, 'denied'), 'a denial', formatAnswer(deletion));
  const kept = await agent.read<{ content: string }>('files.get', { name: file.name });
  expect(kept.content === file.content, 'the file to be there', JSON.stringify(kept));
  narrator.printVerified('The file is still there.');

  narrator.printText('It may charge cards too, but not for any amount:');
  narrator.printRequest('payments.charge 99,900.00 usd');
  const large = await agent.call('payments.charge', charge, { key: `${run}-large` });
  narrator.printAnswer(formatAnswer(large));
  expect(isProblem(large, 403, 'denied'), 'a denial', formatAnswer(large));
  await verifyChargeCount(agent, narrator, charge.order, 0);
}

export async function showApproval({ agent, person, narrator, run }: ScenarioContext): Promise<void> {
  const mail = { to: 'ann@example.com', subject: `Hello from ${run}`, body: 'Shall we meet at noon?' };
  const key = `${run}-mail`;
  const before = await countMailsSent(agent);
  narrator.printText(
    `A mail cannot be taken back, and the mail server could not even tell whether it went out. So the gateway holds the
    call until a person approves it. The agent need not wait: it says so with Prefer: wait=0.`,
  );
  narrator.printRequest(`mail.send to ${mail.to}`);
  const answer = await agent.call('mail.send', mail, { key, wait: 0 });
  narrator.printAnswer(`${formatAnswer(answer)}, transaction ${answer.txn}`);
  expect(answer.status === 202 && answer.state === 'held', 'a held call', formatAnswer(answer));
  expect((await countMailsSent(agent)) === before, 'no mail to be sent', 'one was');
  narrator.printVerified('No mail was sent.');

  const shown = await findPendingApproval(person, answer.txn);
  narrator.printText(
    `A person with the admin key looks at it: ${shown.agent} wants ${shown.tool} to ${shown.args.to} with the subject
    "${shown.args.subject}". That is ${shown.target.method} ${shown.target.url}, and its undo is: ${shown.undo.kind}. All of
    it, with the version of the policies, has one digest, and whoever approves must name it.`,
  );
  narrator.printRequest('approve something else, with another digest');
  const other = await approveCall(person, shown.txn, 'f'.repeat(64));
  narrator.printAnswer(formatAnswer(other));
  expect(isProblem(other, 409, 'conflict'), 'a refusal', formatAnswer(other));
  expect((await countMailsSent(agent)) === before, 'no mail to be sent', 'one was');

  narrator.printRequest(`approve it, digest ${shown.digest.slice(0, 12)}…`);
  const approved = await approveCall(person, shown.txn, shown.digest);
  narrator.printAnswer(formatAnswer(approved));
  expect(approved.body.state === 'approved', 'the call to be approved', formatAnswer(approved));
  await waitUntil(async () => (await countMailsSent(agent)) === before + 1, 'the mail to be sent');
  narrator.printVerified('One mail was sent, although the agent has not asked again.');

  narrator.printRequest('the agent, later: the same call, same key');
  const later = await agent.call('mail.send', mail, { key });
  narrator.printAnswer(`${formatAnswer(later)}: ${readResultId(later)}`);
  expect(later.status === 200 && later.replayed, 'the result of the approved call', formatAnswer(later));
  expect((await countMailsSent(agent)) === before + 1, 'one mail', 'more');
  narrator.printVerified('It is still one mail.');
}

export async function showBudgetLimit({ agent, narrator, run }: ScenarioContext): Promise<void> {
  const charge = (n: number) => ({ amount: 3000, currency: 'usd', card: 'card_prepaid', order: `${run}-tip-${n}` });
  narrator.printText(
    'From this prepaid card the agent may take 50 dollars in any five seconds. It takes 30, and then wants 30 more.',
  );
  narrator.printRequest('payments.charge 30.00 usd');
  let first = await agent.call('payments.charge', charge(1), { key: `${run}-tip-1` });
  if (isProblem(first, 429, 'over_budget')) {
    narrator.printAnswer(`${formatAnswer(first)} That was the run before this one; ${formatWait(first)}`);
    first = await retryAfterDelay(first, () => agent.call('payments.charge', charge(1), { key: `${run}-tip-1` }));
  }
  narrator.printAnswer(`${formatAnswer(first)}: ${readResultId(first)}`);
  expect(first.status === 200, 'the first charge to succeed', formatAnswer(first));

  narrator.printRequest('payments.charge 30.00 usd, for another order');
  const second = await agent.call('payments.charge', charge(2), { key: `${run}-tip-2` });
  narrator.printAnswer(`${formatAnswer(second)} Retry-After: ${second.retryAfter}`);
  expect(isProblem(second, 429, 'over_budget'), 'a refusal', formatAnswer(second));
  await verifyChargeCount(agent, narrator, charge(2).order, 0);

  narrator.printRequest('the first one again, same key');
  const replay = await agent.call('payments.charge', charge(1), { key: `${run}-tip-1` });
  narrator.printAnswer(`${formatAnswer(replay)}: what is done is told for nothing`);
  expect(replay.status === 200 && replay.replayed, 'a replay', formatAnswer(replay));

  narrator.printRequest(`the second one again, same key; ${formatWait(second)}`);
  const third = await retryAfterDelay(second, () => agent.call('payments.charge', charge(2), { key: `${run}-tip-2` }));
  narrator.printAnswer(`${formatAnswer(third)}: ${readResultId(third)}`);
  expect(third.status === 200 && !third.replayed, 'the charge to succeed now', formatAnswer(third));
  await verifyChargeCount(agent, narrator, charge(2).order, 1);
}

export async function showFreeze({ agent, person, narrator, run }: ScenarioContext): Promise<void> {
  const charge = (n: number) => ({
    amount: 1500,
    currency: 'usd',
    card: 'card_visa_4242',
    order: `${run}-freeze-${n}`,
  });
  const ask = (n: number) => agent.call('payments.charge', charge(n), { key: `${run}-freeze-${n}` });
  narrator.printText('An agent behaves oddly. Whoever has the admin key stops it, on every replica at once.');
  const before = await ask(1);
  expect(before.status === 200, 'a charge before', formatAnswer(before));
  narrator.printRequest('freeze the agent demo');
  const thrown = await person.send('POST', '/admin/agents/demo/freeze', { reason: 'the demo shows the kill switch' });
  expect(thrown.status === 200, 'the agent to be frozen', formatAnswer(thrown));
  try {
    narrator.printAnswer('frozen: every replica has said that it knows');
    narrator.printRequest('the agent: payments.charge 15.00 usd');
    const refused = await ask(2);
    narrator.printAnswer(formatAnswer(refused));
    expect(isProblem(refused, 503, 'frozen'), 'a refusal', formatAnswer(refused));
    narrator.printRequest('the agent: a charge from before, same key');
    const replay = await ask(1);
    narrator.printAnswer(`${formatAnswer(replay)}: what happened is still told`);
    expect(replay.status === 200 && replay.replayed, 'a replay', formatAnswer(replay));
  } finally {
    // Whatever went wrong, the next story and the next reader find an agent that can work.
    await person.send('POST', '/admin/agents/demo/unfreeze', { reason: 'the demo is over' });
  }
  narrator.printRequest('unfreeze it');
  await verifyChargeCount(agent, narrator, charge(2).order, 0);
  narrator.printRequest('the agent: the refused charge again, same key');
  const after = await ask(2);
  narrator.printAnswer(`${formatAnswer(after)}: ${readResultId(after)}`);
  expect(after.status === 200 && !after.replayed, 'the charge to go through', formatAnswer(after));
  await verifyChargeCount(agent, narrator, charge(2).order, 1);
}

/** What a person is shown of this call. Newest first, so it is on the first page. */
export async function findPendingApproval(person: DemoClient, txn: string | null): Promise<DemoApproval> {
  const list = await person.send('GET', '/admin/approvals?state=pending');
  const found = list.body.items?.find((approval) => approval.txn === txn);
  if (found === undefined)
    throw new DemoError(`Expected a person to see the held call, but got: ${formatAnswer(list)}`);
  return found;
}

export function approveCall(person: DemoClient, txn: string, digest: string): Promise<DemoAnswer> {
  return person.send('POST', `/admin/approvals/${txn}/approve`, { digest, reason: 'the demo says so' });
}

/** Asks again when the gateway said that it would help. */
async function retryAfterDelay(refused: DemoAnswer, again: () => Promise<DemoAnswer>): Promise<DemoAnswer> {
  const { retryAfter } = refused;
  expect(
    retryAfter > 0 && retryAfter <= MAX_RETRY_AFTER_S,
    'to be told when to come back',
    `Retry-After: ${retryAfter}`,
  );
  await sleep(retryAfter * 1_000);
  return again();
}

function formatWait({ retryAfter }: DemoAnswer): string {
  return `it waits ${retryAfter === 1 ? 'a second' : `${retryAfter} seconds`}, as it was told to.`;
}

async function waitUntil(isSo: () => Promise<boolean>, wanted: string): Promise<void> {
  for (let tries = 0; tries < 100; tries += 1) {
    if (await isSo()) return;
    await sleep(100);
  }
  throw new DemoError(`Expected ${wanted}, but it was not within 10 seconds`);
}

export async function countMailsSent(agent: DemoClient): Promise<number> {
  const { mail } = await agent.read<{ mail: { sent: number } }>('demo.effects', {});
  return mail.sent;
}
