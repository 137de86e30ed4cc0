import type { Continuation, ProgressListener } from '../../domain/attempts/adapter.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
import { computeFingerprint } from '../../domain/calls/txn-id.ts';
import { canonicalize } from '../../domain/canonical.ts';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Agent } from '../../domain/policy.ts';
import type { Span, SpanSubject, TraceContext } from '../../domain/telemetry.ts';
import type { StaleDecision } from '../../ledger/calls/claim.ts';
import { QuorumNotReachedError, renderVotes } from '../approvals/votes.ts';
import type { Dispatch } from '../attempts/dispatch.ts';
import type { Recovery } from '../attempts/recover.ts';
import type { Sequencer } from '../audit/sequencer.ts';
import type { CancelToken } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { taintIfUntrusted } from '../controls/taint.ts';
import type { RollbackWorker } from '../sagas/rollback.ts';
import type { CallerUndo } from '../sagas/undo.ts';
import { decide, identify, type PreparedCall, prepare, RefusedCall } from './admit-call.ts';
import { awaitResult, toInDoubtError } from './await-result.ts';
import { type Claims, claimCall } from './claims.ts';
import { type DecisionFacts, describeDecisionFacts } from './decision-facts.ts';
import { findReplay, indexCachedAnswer, markErasureDelivered, toSpanResult } from './find-replay.ts';
import { serializeContinuation } from './identify-call.ts';
import { buildPoliciesChangedError, buildUndecidedError, isLoggedRefusal, logRefusal, Refusal } from './refusals.ts';

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
  readonly call: CallRecord;
  /** Another request started the call. */
  readonly repeat: boolean;
}

/** A request with its canonical arguments, in the span of the whole call. */
export interface ParsedCall {
  readonly toolCall: ToolCall;
  /** The canonical arguments. */
  readonly args: string;
  readonly fingerprint: Buffer;
  readonly span: Span;
  /** The subject of the spans of this call. */
  readonly subject: SpanSubject;
  /** When the caller stops waiting, on the monotonic clock. */
  readonly until: number;
}

/**
 * Executes a call from its request to its answer, which the protocol encodes. The loop decides again when concurrent calls of
 * the agent changed the history that its rules used. Only promises are awaited: most steps of most calls return none.
 */
export async function executeCall(services: Services, toolCall: ToolCall): Promise<ToolAnswer> {
  const { ctx, dispatch } = services;
  const call = parseCall(ctx, toolCall);
  return recordCall(services, call, async () => {
    const replay = findReplay(services, call, { after: 'parse' });
    if (replay !== undefined) return replay;

    let facts: DecisionFacts | undefined;
    for (let decisions = 1; ; decisions += 1) {
      const deciding = decide(ctx, call, facts);
      const allowed = deciding instanceof Promise ? await deciding : deciding;
      if (allowed instanceof RefusedCall) return replayOrRefuse(services, allowed);

      const identifying = identify(ctx, allowed);
      const identified = identifying instanceof Promise ? await identifying : identifying;
      if (identified instanceof RefusedCall) return replayOrRefuse(services, identified);
      const { txn } = identified;

      const hasVoters = allowed.decision.poll !== undefined;
      const finding = findReplay(services, call, { after: 'identify', identified, hasVoters });
      const repeat = finding instanceof Promise ? await finding : finding;
      if (repeat !== undefined) return repeat;

      const preparing = prepare(ctx, allowed, identified);
      const prepared = preparing instanceof Promise ? await preparing : preparing;
      if (prepared instanceof RefusedCall) return replayOrRefuse(services, prepared);

      const claimed = await claimCall(services, prepared);
      switch (claimed.kind) {
        case 'registered':
          void dispatch.start(claimed.inFlight);
          return { call: await awaitResult(services, call, claimed.inFlight), repeat: false };
        case 'held':
          return { call: await awaitResult(services, call, txn, computeHeldUntil(prepared)), repeat: false };
        case 'taken':
          return findReplay(services, call, { after: 'lost_claim', txn });
        case 'stale_decision':
          facts = refreshFacts(ctx, prepared, claimed, decisions);
      }
    }
  });
}

/** Begins the span of the call and brings its arguments into canonical form. */
function parseCall(ctx: Context, toolCall: ToolCall): ParsedCall {
  const { agent, tool, patienceMs, continuation } = toolCall;
  const subject = { tool: ctx.policies().tools.has(tool) ? tool : 'unknown', agent: agent.name };
  const span = ctx.telemetry.begin('call', subject, toolCall.trace ?? {});
  try {
    const args = canonicalize(toolCall.args);
    const fingerprint = computeFingerprint(tool, args, serializeContinuation(continuation));
    return { toolCall, args, fingerprint, span, subject, until: performance.now() + patienceMs };
  } catch (error) {
    endSpanWithError(span, error);
    throw error;
  }
}

/**
 * Records how a call ends. An untrusted answer taints its caller, and a refusal is logged, before the caller hears of it. If
 * that cannot be written, the caller gets an error instead.
 */
async function recordCall(
  services: Services,
  call: ParsedCall,
  execute: () => Promise<ToolAnswer>,
): Promise<ToolAnswer> {
  const { ctx } = services;
  try {
    const answer = await execute();
    const tainting = taintIfUntrusted(ctx, call.toolCall, answer);
    if (tainting !== undefined)
      await tainting.catch((error: unknown) => {
        throw toInDoubtError(answer.call.txn, answer.call.state, error);
      });
    indexCachedAnswer(ctx, call, answer.call);
    call.span.end(toSpanResult(answer));
    return answer;
  } catch (error) {
    throw await recordError(services, call, error);
  }
}

/** Logs a refusal and ends the span. Returns the error for the caller: the ledger error if the refusal cannot be logged. */
async function recordError(services: Services, { toolCall, span }: ParsedCall, error: unknown): Promise<unknown> {
  const subject = { agent: toolCall.agent.name, tool: toolCall.tool };
  const shown = await logRefusal(services.ctx, subject, error).then(
    () => error,
    (logError: unknown) => logError,
  );
  markErasureDelivered(services, toolCall, shown);
  endSpanWithError(span, shown);
  return shown;
}

function endSpanWithError(span: Span, error: unknown): void {
  span.end({ code: error instanceof GatewayError ? error.code : 'internal' });
}

/** Refuses a call and binds nothing, but answers an earlier call of the same request: a refusal cannot undo it. */
async function replayOrRefuse(services: Services, refused: RefusedCall): Promise<ToolAnswer> {
  const { call, policies, facts, refusal } = refused;
  const tool = policies.tools.get(call.toolCall.tool);
  const replay = await findReplay(services, call, { after: 'refusal', tool });
  if (replay !== undefined) return replay;
  if (!isLoggedRefusal(refusal)) throw refusal;
  throw new Refusal(refusal, {
    policy: policies.version,
    reason: refusal.message,
    ...describeDecisionFacts(facts),
    ...(refusal instanceof QuorumNotReachedError ? { votes: renderVotes(refusal.votes) } : {}),
  });
}

/** Until when the caller waits for a held call. A delay that outlasts the caller's wait is answered at once. */
function computeHeldUntil({ allowed, hold, heldMs = 0 }: PreparedCall): number {
  const { until } = allowed.call;
  return hold === undefined && heldMs > until - performance.now() ? 0 : until;
}

/** How often a call is decided before it is refused because concurrent calls keep changing the decision. */
const MAX_DECISIONS = 5;

/** The facts for the next decision about a call whose decision was stale. */
function refreshFacts(
  ctx: Context,
  { allowed, identified }: PreparedCall,
  { history }: StaleDecision,
  decisions: number,
): DecisionFacts {
  if (decisions >= MAX_DECISIONS) throw buildUndecidedError(identified.txn);
  // The agent of the request, with its rules, belongs to the policies of the first decision.
  if (ctx.policies().version !== allowed.policies.version) throw buildPoliciesChangedError();
  return { history, tainted: allowed.scope.tainted };
}
