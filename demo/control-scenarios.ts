import { setTimeout as sleep } from 'node:timers/promises';
import { type DemoAnswer, type DemoApproval, type DemoClient, DemoError, formatAnswer } from './client.ts';
import { expect, isProblem, readResultId, type ScenarioContext, verifyChargeCount } from './scenario.ts';

/** Longer than any budget window of the demo policies. */
const MAX_RETRY_AFTER_S = 20;

export async function showDenial({ agent, printer, runId }: ScenarioContext): Promise<void> {
  const file = { name: `${runId}.txt`, content: 'Please keep me.' };
  const charge = { amount: 99_900_00, currency: 'usd', card: 'card_visa_4242', order: `${runId}-3` };
  printer.printText('The rules are in policies/demo.yaml. They let this agent write files, but not delete them.');
  const put = await agent.call('files.put', file, { key: `${runId}-put` });
  expect(put.status === 200, 'the file to be written', formatAnswer(put));
  printer.printRequest(`files.delete ${file.name}`);
  const deletion = await agent.call('files.delete', { name: file.name }, { key: `${runId}-delete` });
  printer.printAnswer(formatAnswer(deletion));
  expect(isProblem(deletion, 403, 'denied'), 'a denial', formatAnswer(deletion));
  const kept = await agent.read<{ content: string }>('files.get', { name: file.name });
  expect(kept.content === file.content, 'the file to be there', JSON.stringify(kept));
  printer.printVerified('The file is still there.');

  printer.printText('They also let it charge cards, up to a limit:');
  printer.printRequest('payments.charge 99,900.00 usd');
  const large = await agent.call('payments.charge', charge, { key: `${runId}-large` });
  printer.printAnswer(formatAnswer(large));
  expect(isProblem(large, 403, 'denied'), 'a denial', formatAnswer(large));
  await verifyChargeCount(agent, printer, charge.order, 0);
}

export async function showApproval({ agent, person, printer, runId }: ScenarioContext): Promise<void> {
  const mail = { to: 'ann@example.com', subject: `Hello from ${runId}`, body: 'Shall we meet at noon?' };
  const key = `${runId}-mail`;
  const before = await countMailsSent(agent);
  printer.printText(
    `Nobody can unsend a mail, and the mail server cannot say whether it sent one. So the gateway holds the call until a
    person approves it. The agent does not want to wait and says so with Prefer: wait=0.`,
  );
  printer.printRequest(`mail.send to ${mail.to}`);
  const answer = await agent.call('mail.send', mail, { key, wait: 0 });
  printer.printAnswer(`${formatAnswer(answer)}, transaction ${answer.txn}`);
  expect(answer.status === 202 && answer.state === 'held', 'a held call', formatAnswer(answer));
  expect((await countMailsSent(agent)) === before, 'no mail to be sent', 'one was');
  printer.printVerified('No mail was sent.');

  const shown = await findPendingApproval(person, answer.txn);
  printer.printText(
    `A person with the admin key reads the request: ${shown.agent} wants ${shown.tool} to ${shown.args.to} with the subject
    "${shown.args.subject}". The gateway would send ${shown.target.method} ${shown.target.url}. The undo is
    ${shown.undo.kind}. A digest covers all of this and the policy version. An approval must name that digest.`,
  );
  printer.printRequest('approve with the digest of something else');
  const other = await approveCall(person, shown.txn, 'f'.repeat(64));
  printer.printAnswer(formatAnswer(other));
  expect(isProblem(other, 409, 'conflict'), 'a refusal', formatAnswer(other));
  expect((await countMailsSent(agent)) === before, 'no mail to be sent', 'one was');

  printer.printRequest(`approve with the digest ${shown.digest.slice(0, 12)}…`);
  const approved = await approveCall(person, shown.txn, shown.digest);
  printer.printAnswer(formatAnswer(approved));
  expect(approved.body.state === 'approved', 'the call to be approved', formatAnswer(approved));
  await waitUntil(async () => (await countMailsSent(agent)) === before + 1, 'the mail to be sent');
  printer.printVerified('One mail was sent. The agent did not have to ask again.');

  printer.printRequest('the agent, later: the same call with the same key');
  const later = await agent.call('mail.send', mail, { key });
  printer.printAnswer(`${formatAnswer(later)}: ${readResultId(later)}`);
  expect(later.status === 200 && later.replayed, 'the result of the approved call', formatAnswer(later));
  expect((await countMailsSent(agent)) === before + 1, 'one mail', 'more');
  printer.printVerified('There is still only one mail.');
}

export async function showBudgetLimit({ agent, printer, runId }: ScenarioContext): Promise<void> {
  const charge = (n: number) => ({ amount: 3000, currency: 'usd', card: 'card_prepaid', order: `${runId}-tip-${n}` });
  printer.printText(
    'The agent may charge this prepaid card 50 dollars in any five seconds. It charges 30, and then 30 more.',
  );
  printer.printRequest('payments.charge 30.00 usd');
  let first = await agent.call('payments.charge', charge(1), { key: `${runId}-tip-1` });
  if (isProblem(first, 429, 'over_budget')) {
    printer.printAnswer(`${formatAnswer(first)} The last run of this demo used the budget; ${formatWait(first)}`);
    first = await retryAfterDelay(first, () => agent.call('payments.charge', charge(1), { key: `${runId}-tip-1` }));
  }
  printer.printAnswer(`${formatAnswer(first)}: ${readResultId(first)}`);
  expect(first.status === 200, 'the first charge to succeed', formatAnswer(first));

  printer.printRequest('payments.charge 30.00 usd, for another order');
  const second = await agent.call('payments.charge', charge(2), { key: `${runId}-tip-2` });
  printer.printAnswer(`${formatAnswer(second)} Retry-After: ${second.retryAfter}`);
  expect(isProblem(second, 429, 'over_budget'), 'a refusal', formatAnswer(second));
  await verifyChargeCount(agent, printer, charge(2).order, 0);

  printer.printRequest('the first charge again, with the same key');
  const replay = await agent.call('payments.charge', charge(1), { key: `${runId}-tip-1` });
  printer.printAnswer(`${formatAnswer(replay)}: a replay uses no budget`);
  expect(replay.status === 200 && replay.replayed, 'a replay', formatAnswer(replay));

  printer.printRequest(`the second charge again, with the same key; ${formatWait(second)}`);
  const third = await retryAfterDelay(second, () =>
    agent.call('payments.charge', charge(2), { key: `${runId}-tip-2` }),
  );
  printer.printAnswer(`${formatAnswer(third)}: ${readResultId(third)}`);
  expect(third.status === 200 && !third.replayed, 'the charge to succeed now', formatAnswer(third));
  await verifyChargeCount(agent, printer, charge(2).order, 1);
}

export async function showFreeze({ agent, person, printer, runId }: ScenarioContext): Promise<void> {
  const charge = (n: number) => ({
    amount: 1500,
    currency: 'usd',
    card: 'card_visa_4242',
    order: `${runId}-freeze-${n}`,
  });
  const makeCharge = (n: number) => agent.call('payments.charge', charge(n), { key: `${runId}-freeze-${n}` });
  printer.printText('An agent misbehaves. A person with the admin key stops it on every replica at once.');
  const before = await makeCharge(1);
  expect(before.status === 200, 'a charge before', formatAnswer(before));
  printer.printRequest('freeze the agent demo');
  const frozen = await person.send('POST', '/admin/agents/demo/freeze', { reason: 'the demo shows the kill switch' });
  expect(frozen.status === 200, 'the agent to be frozen', formatAnswer(frozen));
  try {
    printer.printAnswer('frozen: every replica has confirmed');
    printer.printRequest('the agent: payments.charge 15.00 usd');
    const refused = await makeCharge(2);
    printer.printAnswer(formatAnswer(refused));
    expect(isProblem(refused, 503, 'frozen'), 'a refusal', formatAnswer(refused));
    printer.printRequest('the agent: an earlier charge again, with the same key');
    const replay = await makeCharge(1);
    printer.printAnswer(`${formatAnswer(replay)}: replays still work`);
    expect(replay.status === 200 && replay.replayed, 'a replay', formatAnswer(replay));
  } finally {
    // Unfreeze even after a failure, so that the next story and the next run can work.
    await person.send('POST', '/admin/agents/demo/unfreeze', { reason: 'the demo is over' });
  }
  printer.printRequest('unfreeze the agent demo');
  await verifyChargeCount(agent, printer, charge(2).order, 0);
  printer.printRequest('the agent: the refused charge again, with the same key');
  const after = await makeCharge(2);
  printer.printAnswer(`${formatAnswer(after)}: ${readResultId(after)}`);
  expect(after.status === 200 && !after.replayed, 'the charge to go through', formatAnswer(after));
  await verifyChargeCount(agent, printer, charge(2).order, 1);
}

/** Finds the approval of a call on the first page, because the list is newest first. */
export async function findPendingApproval(person: DemoClient, txn: string | null): Promise<DemoApproval> {
  const list = await person.send('GET', '/admin/approvals?state=pending');
  const found = list.body.items?.find((approval) => approval.txn === txn);
  if (found === undefined)
    throw new DemoError(`Expected a person to see the held call, but got: ${formatAnswer(list)}`);
  return found;
}

export function approveCall(person: DemoClient, txn: string, digest: string): Promise<DemoAnswer> {
  return person.send('POST', `/admin/approvals/${txn}/approve`, { digest, reason: 'the demo approves it' });
}

/** Waits as long as Retry-After says, and tries again. */
async function retryAfterDelay(refused: DemoAnswer, again: () => Promise<DemoAnswer>): Promise<DemoAnswer> {
  const { retryAfter } = refused;
  expect(retryAfter > 0 && retryAfter <= MAX_RETRY_AFTER_S, 'a Retry-After header', `Retry-After: ${retryAfter}`);
  await sleep(retryAfter * 1_000);
  return again();
}

function formatWait({ retryAfter }: DemoAnswer): string {
  return `the agent waits ${retryAfter === 1 ? 'a second' : `${retryAfter} seconds`}, as Retry-After says`;
}

async function waitUntil(isTrue: () => Promise<boolean>, expected: string): Promise<void> {
  for (let tries = 0; tries < 100; tries += 1) {
    if (await isTrue()) return;
    await sleep(100);
  }
  throw new DemoError(`Expected ${expected} within 10 seconds.`);
}

export async function countMailsSent(agent: DemoClient): Promise<number> {
  const { mail } = await agent.read<{ mail: { sent: number } }>('demo.effects', {});
  return mail.sent;
}
