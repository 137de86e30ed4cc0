import type { Continuation, McpClientProfile, ProgressListener, RequestInput } from '../../domain/attempts/adapter.ts';
import type { CallSummary } from '../../domain/calls/call.ts';
import { computeFingerprint } from '../../domain/calls/txn-id.ts';
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
  findCachedByKey,
  findEarlierCall,
  findEarlierCallByKey,
  indexCachedAnswer,
  mapLedgerErrorToInDoubt,
  markErasureDelivered,
  replayCached,
} from './repeat-call.ts';
import { canSkipLedger, executeUnrecordedRead } from './unrecorded-reads.ts';

/** How often a call is decided before it is refused because concurrent calls keep changing the decision. */
const MAX_DECISIONS = 5;

/** The context, and the workers that move calls forward. */
export interface Services {
  readonly ctx: Context;
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
  /** The saga of which this call is a step, and the steps that it depends on (absent: all earlier ones). */
  readonly saga?: string | undefined;
  readonly dependsOn?: readonly string[] | undefined;
  /** The run of the call, and the epoch that the agent holds. */
  readonly runEpoch?: RunEpoch | undefined;
  /** An undo that the caller gives, instead of the tool's own. */
  readonly undo?: CallerUndo | undefined;
  /** The caller's reply to a question of an MCP tool. It is part of the fingerprint: the same arguments are then another request. */
  readonly continuation?: Continuation | undefined;
  /** Gets the progress messages of an MCP call. Only the listener of the first request is used, not those of repeats. */
  readonly progressListener?: ProgressListener | undefined;
  /** The trace context of the caller. */
  readonly trace?: TraceContext | undefined;
  /** How long the caller waits for a held or running call. */
  readonly patienceMs: number;
  /** Cancelled when the caller hangs up. Ends the waiting, never the call. */
  readonly cancelToken?: CancelToken | undefined;
  /** The request body, one character per byte, if `args` was parsed from it alone. */
  readonly body?: string | undefined;
}

export interface ToolAnswer {
  readonly call: CallSummary;
  /** Another request started the call. */
  readonly repeat: boolean;
}

/** Executes a call from its request to its answer, in one span. */
export async function executeCall(services: Services, toolCall: ToolCall): Promise<ToolAnswer> {
  const { agent, tool } = toolCall;
  const known = services.ctx.policies().tools.has(tool) ? tool : 'unknown';
  const span = services.ctx.telemetry.begin('call', { tool: known, agent: agent.name }, toolCall.trace ?? {});
  try {
    const args = canonicalize(toolCall.args);
    const canonical = {
      args,
      fingerprint: computeFingerprint(tool, args, serializeContinuation(toolCall.continuation)),
    };
    const answer = await logIfRefused(services.ctx, { agent: agent.name, tool }, () =>
      decideAndClaim(services, toolCall, canonical, span),
    );
    const tainting = taintIfUntrusted(services.ctx, toolCall, answer);
    if (tainting !== undefined) await mapLedgerErrorToInDoubt(answer.call.txn, answer.call.state, tainting);
    indexCachedAnswer(services.ctx, toolCall, canonical.fingerprint, answer.call);
    span.end(toSpanResult(answer));
    return answer;
  } catch (error) {
    markErasureDelivered(services, toolCall, error);
    span.end({ code: error instanceof GatewayError ? error.code : 'internal' });
    throw error;
  }
}

/** The result that the span of a call records. */
export function toSpanResult({ call, repeat: replayed }: ToolAnswer): SpanResult {
  const { txn, state, attempt: attempts, problem } = call;
  return problem === null ? { txn, state, attempts, replayed } : { txn, state, attempts, replayed, code: problem };
}

function pickSagaAndRun({ saga, runEpoch }: ToolCall): { readonly saga: string | null; readonly run: string | null } {
  return { saga: saga ?? null, run: runEpoch?.run ?? null };
}

/** The canonical arguments of a request, and its fingerprint. */
interface CanonicalRequest {
  readonly args: string;
  readonly fingerprint: Buffer;
}

/** Decides, identifies and claims a call, and waits for its result. `previous` is set when a claim found its decision stale. */
async function decideAndClaim(
  services: Services,
  toolCall: ToolCall,
  canonical: CanonicalRequest,
  span: Span,
  previous?: { readonly facts: DecisionFacts; readonly times: number; readonly version: string },
): Promise<ToolAnswer> {
  const { ctx } = services;
  const startedAt = performance.now();
  const policies = ctx.policies();
  if (previous !== undefined && previous.version !== policies.version) throw buildPoliciesChangedError();
  const { args, fingerprint } = canonical;
  // A finished call is replayed before the decision, because the current rules cannot undo it.
  const cached = findCachedByKey(ctx, toolCall);
  if (cached?.fingerprint.equals(fingerprint) === true) return replayCached(cached, toolCall, fingerprint);
  const subject = { tool: policies.tools.has(toolCall.tool) ? toolCall.tool : 'unknown', agent: toolCall.agent.name };
  const decideSpan = ctx.telemetry.begin('decide', subject, span);
  const origin = pickSagaAndRun(toolCall);
  const reading = previous?.facts ?? readDecisionFacts(ctx, toolCall.agent, toolCall.tool, origin);
  const facts = reading instanceof Promise ? await reading : reading;
  const { saga, run } = origin;
  const { history, tainted } = facts;
  const scope: DecisionInput = { args: toolCall.args, saga, run, now: Date.now(), history, tainted };
  const decision = decideCall(policies, toolCall.agent, toolCall.tool, scope);
  const tool = policies.tools.get(toolCall.tool);
  const refusal = findRefusal(decision, tool, toolCall, facts);
  const { allowed } = decision;
  decideSpan.end(decision.rule === undefined ? { allowed } : { allowed, rule: decision.rule.id });
  if (refusal !== undefined || tool === undefined || !decision.allowed) {
    return refuseUnlessRepeat(services, toolCall, { tool, fingerprint, policies, refusal, facts, span });
  }

  let admitted: AdmittedCall;
  try {
    const agent = toolCall.agent.name;
    if (toolCall.undo !== undefined) await refuseInvalidUndo(ctx, policies, toolCall);
    const identifying = identifyCall(ctx, toolCall, tool, fingerprint);
    const identified = identifying instanceof Promise ? await identifying : identifying;
    const cachedByTxn = ctx.replayCache.get(identified.txn);
    if (cachedByTxn !== undefined) return replayCached(cachedByTxn, toolCall, fingerprint);
    if (identified.identity === 'shared') {
      const earlier = await findEarlierCallByKey(ctx, toolCall, identified.txn, fingerprint);
      if (earlier !== undefined) return answerRepeat(services, earlier.txn, fingerprint, toolCall, span);
    }
    const request = ctx.adapters.getAdapter(tool).prepare(tool, toRequestInput(toolCall, args, span), identified.txn);
    const { rule, poll } = decision;
    const hold = decision.hold ?? (identified.holdAsRepeat === true ? DEFAULT_APPROVAL : undefined);
    const heldMs = hold?.withinMs ?? rule.delayMs;
    refuseIfDisabled(ctx, agent, tool, heldMs !== undefined);
    const guarded = { toolCall, tool, policies, rule, decision, scope, hold, fingerprint, request, identified };
    let votes = NO_VOTES;
    if (poll !== undefined) {
      const shown = () => describeForApproval(guarded, NO_VOTES);
      const cast = await collectRuleVotes(
        ctx,
        { txn: identified.txn, tool, rule, poll, policies, shown },
        { agent, span },
      );
      if (cast === undefined) return answerRepeat(services, identified.txn, fingerprint, toolCall, span);
      votes = cast;
    }
    const guards = buildClaimGuards(ctx, guarded, votes);
    admitted = {
      toolCall,
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
      span,
    };
  } catch (error) {
    // The current contract cannot build a key or request from these arguments, or sends are disabled. An earlier call with
    // the same key is still answered.
    if (!(error instanceof GatewayError)) throw error;
    return refuseUnlessRepeat(services, toolCall, { tool, fingerprint, policies, refusal: error, facts, span });
  }
  if (canSkipLedger(admitted)) return { call: await executeUnrecordedRead(services, admitted), repeat: false };
  const { txn } = admitted.identified;
  if (toolCall.dependsOn !== undefined) await refuseForeignDependencies(ctx, toolCall);
  const claimSpan = ctx.telemetry.begin('claim', subject, span);
  let claimed: ClaimWon | ClaimTaken | StaleDecision;
  try {
    claimed = await claimCall(services, admitted);
  } finally {
    claimSpan.end();
  }
  // Subtract the time already spent, which is long if the claim waited for locks.
  const patienceMs = Math.max(0, toolCall.patienceMs - (performance.now() - startedAt));
  switch (claimed.kind) {
    case 'won': {
      // Answer at once if the delay outlasts the caller's wait.
      const outlastsWait = admitted.hold === undefined && (admitted.heldMs ?? 0) > patienceMs;
      const { agent, cancelToken } = toolCall;
      const waiter = { tool: toolCall.tool, agent, cancelToken, patienceMs: outlastsWait ? 0 : patienceMs };
      return await awaitResult(services, { txn, fingerprint }, waiter, false, span);
    }
    case 'taken':
      return answerRepeat(services, txn, fingerprint, { ...toolCall, patienceMs }, span);
    case 'stale_decision': {
      const times = (previous?.times ?? 0) + 1;
      if (times >= MAX_DECISIONS) throw buildUndecidedError(txn);
      return decideAndClaim(services, { ...toolCall, patienceMs }, canonical, span, {
        facts: { ...facts, history: claimed.history },
        times,
        version: policies.version,
      });
    }
  }
}

/** Refuses a call and binds nothing, but answers an earlier call with the same key: a refusal cannot undo it. */
async function refuseUnlessRepeat(
  services: Services,
  toolCall: ToolCall,
  refused: {
    readonly tool: Tool | undefined;
    readonly fingerprint: Buffer;
    readonly policies: Policies;
    readonly refusal: GatewayError | undefined;
    readonly facts: DecisionFacts;
    readonly span: Span;
  },
): Promise<ToolAnswer> {
  const { ctx } = services;
  const { tool, fingerprint, policies, refusal, facts, span } = refused;
  const earlier = await findEarlierCall(ctx, toolCall, tool, fingerprint);
  if (earlier !== undefined) return answerRepeat(services, earlier.txn, fingerprint, toolCall, span);
  const error = refusal ?? new GatewayError('unknown_tool', `There is no tool ${toolCall.tool}.`);
  if (!isLoggedRefusal(error)) throw error;
  throw new Refusal(error, {
    policy: policies.version,
    reason: error.message,
    ...describeDecisionFacts(facts),
    ...(error instanceof QuorumNotReachedError ? { votes: renderVotes(error.votes) } : {}),
  });
}

function toRequestInput(
  { args, agent, progressListener, continuation }: ToolCall,
  canonicalArgs: string,
  { trace }: Span,
): RequestInput {
  const clientProfile = progressListener === undefined ? undefined : toClientProfile(progressListener);
  return { args, canonicalArgs, agent: agent.name, clientProfile, trace, continuation };
}

/** The part of the MCP client that the request depends on. */
function toClientProfile({ era, capabilities, meta }: ProgressListener): McpClientProfile {
  return { era, capabilities, meta };
}
