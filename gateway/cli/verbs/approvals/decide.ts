import type { JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { counted } from '../../count-words.ts';
import { type Output, paint } from '../../output.ts';
import { REASON, reasonOf } from '../../reason-option.ts';
import { isYes } from '../../terminal.ts';
import { type Invocation, type Io, NotGood, type Option, UsageError, type Verb } from '../../verb.ts';
import { callPath, member } from '../calls/call-text.ts';
import { approvalStyle, approversOf, tellApproval } from './approval-text.ts';

type Verdict = 'approve' | 'reject';

const DIGEST: Option = { value: 'HEX', help: 'the digest of what you saw; anything else is refused' };
/** The digest of nothing that could wait: whoever sends it can only be told how a decision fell. */
const OF_NOTHING = '0'.repeat(64);

export const approveVerb: Verb = {
  name: 'approve',
  summary: 'let a held call run, exactly as it is shown',
  operands: [{ name: 'txn' }],
  options: {
    reason: REASON,
    yes: { help: 'do not ask' },
    digest: DIGEST,
  },
  run: async (invocation) => {
    const { io, flag, json } = invocation;
    // Without a terminal nobody is asked, so something must say that this is meant.
    const asks = !flag('yes') && io.ask !== undefined && !json;
    if (!asks && !flag('yes') && digestOf(invocation) === undefined)
      throw new UsageError('nobody can be asked here: add --yes, or --digest of what you saw');
    return decide(invocation, 'approve', async () => {
      if (!asks || isYes(await io.ask?.('Let it run? [y/N] '))) return;
      throw new NotGood('not_decided', 'Nothing was decided: it goes on waiting.');
    });
  },
};

export const rejectVerb: Verb = {
  name: 'reject',
  summary: 'refuse a held call: it never runs',
  operands: [{ name: 'txn' }],
  options: { reason: REASON, digest: DIGEST },
  run: (invocation) => decide(invocation, 'reject', async () => {}),
};

async function decide(invocation: Invocation, verdict: Verdict, confirm: () => Promise<void>): Promise<number> {
  const { io, out, operands } = invocation;
  const reason = reasonOf(invocation);
  const named = digestOf(invocation);
  const txn = callPath(operands[0] ?? '').slice('/admin/calls/'.length);
  const waiting = await findWaiting(io, txn);
  if (waiting !== undefined) {
    tellApproval(out, waiting);
    const shown = member(waiting, 'digest');
    if (named !== undefined && named !== shown) {
      const message = `What would run now has the digest ${shown}, not the one you named: look again.`;
      throw new NotGood('conflict', message, { digest: shown });
    }
    await confirm();
  }
  // What waits no longer was decided, or ended: the gateway says how, and that the same decision again is fine.
  const digest = named ?? (waiting === undefined ? OF_NOTHING : member(waiting, 'digest'));
  const decided = await askGateway(io, `/admin/approvals/${txn}/${verdict}`, {
    method: 'POST',
    body: { reason, digest },
    advice: ({ code }) => (code === 'forbidden' ? undefined : '"oncegate approvals" lists what waits now.'),
  });
  out.json(decided);
  tell(out, decided, waiting);
  return 0;
}

async function findWaiting(io: Io, txn: string): Promise<JsonObject | undefined> {
  try {
    const approval = await askGateway(io, `/admin/approvals/${txn}`);
    return approval['state'] === 'pending' ? approval : undefined;
  } catch (error) {
    if (error instanceof NotGood && error.code === 'not_found') return undefined;
    throw error;
  }
}

function digestOf({ text }: Invocation): string | undefined {
  const digest = text('digest')?.toLowerCase();
  if (digest === undefined || /^[0-9a-f]{64}$/.test(digest)) return digest;
  throw new UsageError('--digest is not 64 hex digits; "oncegate approvals --json" has it');
}

function tell(out: Output, decided: JsonObject, waiting: JsonObject | undefined): void {
  const txn = member(decided, 'txn');
  const state = member(decided, 'state');
  if (!out.terminal) {
    out.line(`${txn}\t${state}`);
    return;
  }
  out.line('');
  out.line(
    `${txn} is ${waiting !== undefined && state !== 'pending' ? 'now ' : ''}`,
    paint(approvalStyle(state), state),
  );
  const leavesAt = member(decided, 'leavesAt');
  if (state === 'pending' && leavesAt !== '')
    out.line(`It leaves by itself at ${leavesAt}; until then it can be rejected.`);
  else if (state === 'pending') out.line(voteText(decided, waiting));
  if (state === 'approved') out.line('It runs without its agent; "oncegate call <txn>" shows what comes of it.');
}

/** Of a vote that did not decide. */
function voteText(decided: JsonObject, waiting: JsonObject | undefined): string {
  const approvers = approversOf(decided);
  const missing = Number(decided['quorum']) - approvers.length;
  // All that are listed would be enough, so not all of them count.
  if (!(missing > 0)) return 'Your vote counts; earlier ones were for what would have run before the policies changed.';
  const before = waiting === undefined ? [] : approversOf(waiting);
  const isAgain = approvers.every((person) => before.includes(person));
  const needed = `${counted(missing, 'more approval')} ${missing === 1 ? 'is' : 'are'} needed`;
  return `${isAgain ? 'Your vote was there already and counts once' : 'Your vote counts'}: ${needed}.`;
}
