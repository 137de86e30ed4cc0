import type { Continuation, McpClientProfile, ProgressListener, RequestInput } from '../../domain/attempts/adapter.ts';
import type { CallSummary } from '../../domain/calls/call.ts';
import { computeFingerprint as fingerprintOf } from '../../domain/calls/txn-id.ts';
import { canonicalize } from '../../domain/canonical.ts';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Agent, Policies, Tool } from '../../domain/policy.ts';
import type { Span, SpanResult, TraceContext } from '../../domain/telemetry.ts';
import type { ClaimTaken, ClaimWon, StaleDecision } from '../../ledger/calls/calls.ts';
import { DEFAULT_APPROVAL, type DecisionInput, decideCall } from '../../policy/decide.ts';
import { collectRuleVotes, NO_VOTES, QuorumNotReachedError, renderVotes } from '../approvals/votes.ts';
import type { Dispatch } from '../attempts/dispatch.ts';
import type { Recovery } from '../attempts/recover.ts';
import type { Sequencer } from '../audit/sequencer.ts';
import type { CancelToken } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { taintIfUntrusted } from '../controls/taint.ts';
import type { RollbackWorker } from '../sagas/rollback.ts';
import { refuseForeignDependencies } from '../sagas/sagas.ts';
import type { CallerUndo } from '../sagas/undo.ts';
import { type AdmittedCall, claimCall } from './claim-call.ts';
import { buildClaimGuards, describeForApproval } from './claim-guards.ts';
import type { Claims } from './claims.ts';
import { type DecisionFacts, describeDecisionFacts, readDecisionFacts } from './decision-facts.ts';
import { identifyCall, serializeContinuation } from './identify-call.ts';
import { isLoggedRefusal, logIfRefused, Refusal } from './refusal.ts';
import {
  buildPoliciesChangedError,
  buildUndecidedError,
  findRefusal,
  refuseIfDisabled,
  refuseInvalidUndo,
} from './refuse.ts';
import {
  answerRepeat,
  awaitResult,
  cacheKey,
  findCachedByKey,
  findEarlierCall,
  findEarlierCallByKey,
  inDoubtIfUnrecorded,
  markErasureDelivered,
  replayCached,
} from './repeat-call.ts';
import { canSkipLedger, executeUnrecordedRead } from './unrecorded-reads.ts';

/** A decision that what the agent does beside it changes this often is given up. */
const MAX_DECISIONS = 5;

/** The station with what moves calls along it. */
export interface Services {
  readonly station: Context;
  readonly dispatch: Dispatch;
  readonly claims: Claims;
  readonly recovery: Recovery;
  readonly rollbacks: RollbackWorker;
  readonly sequencer: Sequencer;
}

export interface ToolCall {
  readonly agent: Agent;
  readonly tool: string;
  readonly args: JsonObject;
  readonly key: string | undefined;
  /** The saga it is to be a step of, and which of its steps it rests on (absent: all earlier ones). */
  readonly saga?: string | undefined;
  readonly dependsOn?: readonly string[] | undefined;
  /** The run it is made in, and the epoch that the agent holds. */
  readonly fence?: RunEpoch | undefined;
  /** An undo that is known only now. */
  readonly undo?: CallerUndo | undefined;
  /** What an earlier answer of an MCP tool asked for: another request, though the arguments are the same. */
  readonly continuation?: Continuation | undefined;
  /** An MCP client that hears what happens while the call runs. Of a repeat only the first one's does. */
  readonly follower?: ProgressListener | undefined;
  /** What the caller's own work is part of. */
  readonly trace?: TraceContext | undefined;
  /** How long the caller waits for a held or running call. */
  readonly patienceMs: number;
  /** The caller hung up. Ends the waiting, never the call. */
  readonly caller?: CancelToken | undefined;
  /** What `args` was read from, a character a byte, where that is all that was read. */
  readonly body?: string | undefined;
}

export interface ToolAnswer {
  readonly call: CallSummary;
  /** This caller did not start the call. */
  readonly repeat: boolean;
}

/** A call from its request to its answer, watched. */
export async function executeCall(flow: Services, asked: ToolCall): Promise<ToolAnswer> {
  const { agent, tool } = asked;
  const known = flow.station.policies().tools.has(tool) ? tool : 'unknown';
  const stint = flow.station.watch.begin('call', { tool: known, agent: agent.name }, asked.trace ?? {});
  try {
    const args = canonicalize(asked.args);
    const meant = { args, fingerprint: fingerprintOf(tool, args, serializeContinuation(asked.continuation)) };
    const answer = await logIfRefused(flow.station, { agent: agent.name, tool }, () =>
      decideAndClaim(flow, asked, meant, stint),
    );
    const exposing = taintIfUntrusted(flow.station, asked, answer);
    if (exposing !== undefined) await inDoubtIfUnrecorded(answer.call.txn, answer.call.state, exposing);
    cacheKey(flow.station, asked, meant.fingerprint, answer.call);
    stint.end(toSpanResult(answer));
    return answer;
  } catch (error) {
    markErasureDelivered(flow, asked, error);
    stint.end({ code: error instanceof GatewayError ? error.code : 'internal' });
    throw error;
  }
}

/** How a call ended, as it is watched. */
export function toSpanResult({ call, repeat: replayed }: ToolAnswer): SpanResult {
  const { txn, state, attempt: attempts, problem } = call;
  return problem === null ? { txn, state, attempts, replayed } : { txn, state, attempts, replayed, code: problem };
}

function sagaAndRun({ saga, fence }: ToolCall): { readonly saga: string | null; readonly run: string | null } {
  return { saga: saga ?? null, run: fence?.run ?? null };
}

/** What is asked for: the canonical text of its arguments, and what tells it from any other wish. */
interface CanonicalRequest {
  readonly args: string;
  readonly fingerprint: Buffer;
}

/** The way of a call: decide, identify, claim, send, settle, reply. `overtaken` is what the last claim found out, and how often. */
async function decideAndClaim(
  flow: Services,
  asked: ToolCall,
  meant: CanonicalRequest,
  stint: Span,
  overtaken?: { readonly facts: DecisionFacts; readonly times: number; readonly version: string },
): Promise<ToolAnswer> {
  const { station } = flow;
  const began = performance.now();
  const policies = station.policies();
  if (overtaken !== undefined && overtaken.version !== policies.version) throw buildPoliciesChangedError();
  const { args, fingerprint } = meant;
  // What was done is told before anything is judged: whatever the rules say today, it does not become undone.
  const done = findCachedByKey(station, asked);
  if (done?.fingerprint.equals(fingerprint) === true) return replayCached(done, asked, fingerprint);
  const about = { tool: policies.tools.has(asked.tool) ? asked.tool : 'unknown', agent: asked.agent.name };
  const deciding = station.watch.begin('decide', about, stint);
  const place = sagaAndRun(asked);
  const known = overtaken?.facts ?? readDecisionFacts(station, asked.agent, asked.tool, place);
  const facts = known instanceof Promise ? await known : known;
  const { saga, run } = place;
  const { history, tainted } = facts;
  const scope: DecisionInput = { args: asked.args, saga, run, now: Date.now(), history, tainted };
  const decision = decideCall(policies, asked.agent, asked.tool, scope);
  const tool = policies.tools.get(asked.tool);
  const refusal = findRefusal(decision, tool, asked, facts);
  const { allowed } = decision;
  deciding.end(decision.rule === undefined ? { allowed } : { allowed, rule: decision.rule.id });
  if (refusal !== undefined || tool === undefined || !decision.allowed) {
    return refuseUnlessRepeat(flow, asked, { tool, fingerprint, policies, refusal, facts, stint });
  }

  let admitted: AdmittedCall;
  try {
    const agent = asked.agent.name;
    if (asked.undo !== undefined) await refuseInvalidUndo(station, policies, asked);
    const identifying = identifyCall(station, asked, tool, fingerprint);
    const identified = identifying instanceof Promise ? await identifying : identifying;
    const final = station.finals.get(identified.txn);
    if (final !== undefined) return replayCached(final, asked, fingerprint);
    if (identified.identity === 'shared') {
      const earlier = await findEarlierCallByKey(station, asked, identified.txn, fingerprint);
      if (earlier !== undefined) return answerRepeat(flow, earlier.txn, fingerprint, asked, stint);
    }
    const request = station.adapters.getAdapter(tool).prepare(tool, toRequestInput(asked, args, stint), identified.txn);
    const { rule, poll } = decision;
    const hold = decision.hold ?? (identified.holdAsRepeat === true ? DEFAULT_APPROVAL : undefined);
    const heldMs = hold?.withinMs ?? rule.delayMs;
    refuseIfDisabled(station, agent, tool, heldMs !== undefined);
    const judged = { asked, tool, policies, rule, decision, scope, hold, fingerprint, request, identified };
    let votes = NO_VOTES;
    if (poll !== undefined) {
      const shown = () => describeForApproval(judged, NO_VOTES);
      const cast = await collectRuleVotes(
        station,
        { txn: identified.txn, tool, rule, poll, policies, shown },
        { agent, stint },
      );
      if (cast === undefined) return answerRepeat(flow, identified.txn, fingerprint, asked, stint);
      votes = cast;
    }
    const guards = buildClaimGuards(station, judged, votes);
    admitted = {
      asked,
      tool,
      policies,
      rule,
      hold,
      heldMs,
      votes,
      args,
      fingerprint,
      identified,
      request,
      guards,
      stint,
    };
  } catch (error) {
    // No key or no request can be made of these arguments under today's contract, or the tool is switched off; what was
    // done before is told all the same.
    if (!(error instanceof GatewayError)) throw error;
    return refuseUnlessRepeat(flow, asked, { tool, fingerprint, policies, refusal: error, facts, stint });
  }
  if (canSkipLedger(admitted)) return { call: await executeUnrecordedRead(flow, admitted), repeat: false };
  const { txn } = admitted.identified;
  if (asked.dependsOn !== undefined) await refuseForeignDependencies(station, asked);
  const claiming = station.watch.begin('claim', about, stint);
  let claimed: ClaimWon | ClaimTaken | StaleDecision;
  try {
    claimed = await claimCall(flow, admitted);
  } finally {
    claiming.end();
  }
  // Whoever waited for a lock has that much less patience left.
  const patienceMs = Math.max(0, asked.patienceMs - (performance.now() - began));
  switch (claimed.kind) {
    case 'won': {
      // Nobody waits for a delay that is longer than their patience.
      const isFar = admitted.hold === undefined && (admitted.heldMs ?? 0) > patienceMs;
      const { agent, caller } = asked;
      const asker = { tool: asked.tool, agent, caller, patienceMs: isFar ? 0 : patienceMs };
      return await awaitResult(flow, { txn, fingerprint }, asker, false, stint);
    }
    case 'taken':
      return answerRepeat(flow, txn, fingerprint, { ...asked, patienceMs }, stint);
    case 'stale_decision': {
      const times = (overtaken?.times ?? 0) + 1;
      if (times >= MAX_DECISIONS) throw buildUndecidedError(txn);
      return decideAndClaim(flow, { ...asked, patienceMs }, meant, stint, {
        facts: { ...facts, history: claimed.history },
        times,
        version: policies.version,
      });
    }
  }
}

/** A refusal binds nothing. But what was done before under the same key is still told: it does not become undone. */
async function refuseUnlessRepeat(
  flow: Services,
  asked: ToolCall,
  why: {
    readonly tool: Tool | undefined;
    readonly fingerprint: Buffer;
    readonly policies: Policies;
    readonly refusal: GatewayError | undefined;
    readonly facts: DecisionFacts;
    readonly stint: Span;
  },
): Promise<ToolAnswer> {
  const { station } = flow;
  const { tool, fingerprint, policies, refusal, facts, stint } = why;
  const earlier = await findEarlierCall(station, asked, tool, fingerprint);
  if (earlier !== undefined) return answerRepeat(flow, earlier.txn, fingerprint, asked, stint);
  const error = refusal ?? new GatewayError('unknown_tool', `There is no tool ${asked.tool}.`);
  if (!isLoggedRefusal(error)) throw error;
  throw new Refusal(error, {
    policy: policies.version,
    reason: error.message,
    ...describeDecisionFacts(facts),
    ...(error instanceof QuorumNotReachedError ? { votes: renderVotes(error.votes) } : {}),
  });
}

function toRequestInput(
  { args, agent, follower, continuation }: ToolCall,
  canonicalArgs: string,
  { trace }: Span,
): RequestInput {
  const manner = follower === undefined ? undefined : toClientProfile(follower);
  return { args, canonicalArgs, agent: agent.name, manner, trace, continuation };
}

/** What of the MCP client that asks shows in the request. */
function toClientProfile({ era, capabilities, meta }: ProgressListener): McpClientProfile {
  return { era, capabilities, meta };
}
