import type { JsonObject } from '../../../domain/json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { textField } from '../../json-fields.ts';
import { type Output, paint } from '../../output.ts';
import { formatCount } from '../../quantities.ts';
import { REASON_OPTION, readReason } from '../../reason-option.ts';
import { isYes } from '../../terminal.ts';
import { type Invocation, type Io, type Option, UsageError, type Verb, VerbError } from '../../verb.ts';
import { parseTxn } from '../calls/call-text.ts';
import { approvalStateStyle, listApprovers, printApproval } from './approval-text.ts';

type Decision = 'approve' | 'reject';

const DIGEST_OPTION: Option = { value: 'HEX', help: 'decide only if the call that would run has this digest' };
/** Matches no approval: sent for a call that no longer waits, to learn its decision without making one. */
const EMPTY_DIGEST = '0'.repeat(64);

export const approveVerb: Verb = {
  name: 'approve',
  summary: 'approve a held call: it runs exactly as shown',
  operands: [{ name: 'txn' }],
  options: {
    reason: REASON_OPTION,
    yes: { help: 'do not ask for confirmation' },
    digest: DIGEST_OPTION,
  },
  run: async (invocation) => {
    const { io, hasFlag, isJson } = invocation;
    // Without a terminal there is no confirmation, so an option must replace it.
    const shouldAsk = !hasFlag('yes') && io.prompt !== undefined && !isJson;
    if (!shouldAsk && !hasFlag('yes') && readDigest(invocation) === undefined)
      throw new UsageError('there is no terminal to ask on: add --yes, or --digest with the digest that you saw');
    return decide(invocation, 'approve', async () => {
      if (!shouldAsk || isYes(await io.prompt?.('Approve this call? [y/N] '))) return;
      throw new VerbError('not_decided', 'You decided nothing. The call still waits.');
    });
  },
};

export const rejectVerb: Verb = {
  name: 'reject',
  summary: 'reject a held call: it never runs',
  operands: [{ name: 'txn' }],
  options: { reason: REASON_OPTION, digest: DIGEST_OPTION },
  run: (invocation) => decide(invocation, 'reject', async () => {}),
};

async function decide(invocation: Invocation, verdict: Decision, confirm: () => Promise<void>): Promise<number> {
  const { io, out, operands } = invocation;
  const reason = readReason(invocation);
  const expected = readDigest(invocation);
  const txn = parseTxn(operands[0] ?? '');
  const pending = await findPending(io, txn);
  if (pending !== undefined) {
    printApproval(out, pending);
    const shown = textField(pending, 'digest');
    if (expected !== undefined && expected !== shown) {
      const message = `The call that would run now has the digest ${shown}, not the one that you gave. Look at it again.`;
      throw new VerbError('conflict', message, { digest: shown });
    }
    await confirm();
  }
  // If the call no longer waits, the gateway answers with its decision, and accepts the same decision again.
  const digest = expected ?? (pending === undefined ? EMPTY_DIGEST : textField(pending, 'digest'));
  const decided = await requestGateway(io, `/admin/approvals/${txn}/${verdict}`, {
    method: 'POST',
    body: { reason, digest },
    advice: ({ code }) => (code === 'forbidden' ? undefined : '"oncegate approvals" lists the calls that wait now.'),
  });
  out.printJson(decided);
  printDecision(out, decided, pending);
  return 0;
}

async function findPending(io: Io, txn: string): Promise<JsonObject | undefined> {
  try {
    const approval = await requestGateway(io, `/admin/approvals/${txn}`);
    return approval['state'] === 'pending' ? approval : undefined;
  } catch (error) {
    if (error instanceof VerbError && error.code === 'not_found') return undefined;
    throw error;
  }
}

function readDigest({ text }: Invocation): string | undefined {
  const digest = text('digest')?.toLowerCase();
  if (digest === undefined || /^[0-9a-f]{64}$/.test(digest)) return digest;
  throw new UsageError('--digest is not 64 hex digits; "oncegate approvals --json" has it');
}

function printDecision(out: Output, decided: JsonObject, pending: JsonObject | undefined): void {
  const txn = textField(decided, 'txn');
  const state = textField(decided, 'state');
  if (!out.isTerminal) {
    out.printLine(`${txn}\t${state}`);
    return;
  }
  out.printLine('');
  out.printLine(
    `${txn} is ${pending !== undefined && state !== 'pending' ? 'now ' : ''}`,
    paint(approvalStateStyle(state), state),
  );
  const leavesAt = textField(decided, 'leavesAt');
  if (state === 'pending' && leavesAt !== '')
    out.printLine(`The gateway sends it at ${leavesAt}. Until then you can reject it.`);
  else if (state === 'pending') out.printLine(formatVoteEffect(decided, pending));
  if (state === 'approved') out.printLine('It runs even if its agent is gone. "oncegate call <txn>" shows the result.');
}

/** Describes a vote that did not decide the approval. */
function formatVoteEffect(decided: JsonObject, pending: JsonObject | undefined): string {
  const approvers = listApprovers(decided);
  const missing = Number(decided['quorum']) - approvers.length;
  // Enough approvals are listed, yet the call still waits: some are for an older digest.
  if (!(missing > 0)) return 'Your vote counts. Earlier votes do not, because the policies changed since.';
  const before = pending === undefined ? [] : listApprovers(pending);
  const isRepeated = approvers.every((person) => before.includes(person));
  const needed = `${formatCount(missing, 'more approval')} ${missing === 1 ? 'is' : 'are'} needed`;
  return `${isRepeated ? 'You have already voted, and a vote counts once' : 'Your vote counts'}: ${needed}.`;
}
