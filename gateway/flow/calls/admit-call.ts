import type { Vote } from '../../domain/approvals/vote.ts';
import type { PreparedRequest, RequestInput } from '../../domain/attempts/adapter.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { ApprovalSpec, Policies, PolicyDecision, VoterPoll } from '../../domain/policy.ts';
import type { Span } from '../../domain/telemetry.ts';
import type { ClaimGuards } from '../../ledger/calls/claim.ts';
import { DEFAULT_APPROVAL, type DecisionInput, decideCall } from '../../policy/decide.ts';
import { askVoters, NO_VOTES } from '../approvals/votes.ts';
import type { Context } from '../context.ts';
import { buildClaimGuards, describeForApproval } from './claim-guards.ts';
import { type DecisionFacts, readDecisionFacts } from './decision-facts.ts';
import type { ParsedCall } from './execute-call.ts';
import { type IdentifiedCall, identifyCall } from './identify-call.ts';
import { buildDeniedError, findArgumentRefusal, refuseIfDisabled, refuseInvalidUndo } from './refusals.ts';

// The steps of a call before its claim: decide, identify, prepare. Each returns its result, or the refusal of the call. A step
// returns a promise only where it must ask the ledger or a voter, because most steps of most calls need not
// (docs/adr/0041-what-a-call-costs-in-processor-time.md).

/** A call that the rules allow. */
export interface AllowedCall {
  readonly call: ParsedCall;
  readonly policies: Policies;
  /** The decision, and the input that it was made from. */
  readonly decision: Extract<PolicyDecision, { allowed: true }>;
  readonly scope: DecisionInput;
}

/** An allowed call with everything that its claim needs. */
export interface PreparedCall {
  readonly allowed: AllowedCall;
  readonly identified: IdentifiedCall;
  readonly request: PreparedRequest;
  readonly hold: ApprovalSpec | undefined;
  /** How long the call is held at most, for approval or for the delay of its rule. Undefined: it is sent now. */
  readonly heldMs: number | undefined;
  /** Empty until the voters have answered. */
  votes: readonly Vote[];
  /** Built last, because they depend on the votes. */
  guards: ClaimGuards | undefined;
}

/** A call that is refused before its claim. */
export class RefusedCall {
  readonly call: ParsedCall;
  readonly policies: Policies;
  /** The facts that the rules used. */
  readonly facts: DecisionFacts;
  readonly refusal: GatewayError;

  constructor(call: ParsedCall, policies: Policies, facts: DecisionFacts, refusal: GatewayError) {
    this.call = call;
    this.policies = policies;
    this.facts = facts;
    this.refusal = refusal;
  }
}

/** The result of a step, or of the query that it waits for. */
type StepResult<T> = T | RefusedCall | Promise<T | RefusedCall>;

/** Decides by the rules whether the agent may make this call. `knownFacts` are those of an earlier, stale decision. */
export function decide(ctx: Context, call: ParsedCall, knownFacts: DecisionFacts | undefined): StepResult<AllowedCall> {
  const { agent, tool, saga = null, runEpoch, undo } = call.toolCall;
  const policies = ctx.policies();
  const span = ctx.telemetry.begin('decide', call.subject, call.span);
  const facts = knownFacts ?? readDecisionFacts(ctx, agent, tool, { saga, run: runEpoch?.run ?? null });
  const decided =
    facts instanceof Promise
      ? facts.then((read) => decideByFacts(call, policies, read, span))
      : decideByFacts(call, policies, facts, span);
  return undo === undefined ? decided : refuseIfUndoInvalid(ctx, decided);
}

function decideByFacts(
  call: ParsedCall,
  policies: Policies,
  { history, tainted }: DecisionFacts,
  span: Span,
): AllowedCall | RefusedCall {
  const { toolCall } = call;
  const { agent, tool, args, saga = null, runEpoch } = toolCall;
  const scope: DecisionInput = { args, saga, run: runEpoch?.run ?? null, now: Date.now(), history, tainted };
  const decision = decideCall(policies, agent, tool, scope);
  const { allowed, rule } = decision;
  const decided = decision.allowed
    ? refuseIfArgumentsInvalid({ call, policies, decision, scope })
    : new RefusedCall(call, policies, scope, buildDeniedError(decision, policies.tools.get(tool), toolCall, scope));
  span.end(rule === undefined ? { allowed } : { allowed, rule: rule.id });
  return decided;
}

function refuseIfArgumentsInvalid(allowed: AllowedCall): AllowedCall | RefusedCall {
  const { call, policies, decision, scope } = allowed;
  const refusal = findArgumentRefusal(decision.tool, call.toolCall.args);
  return refusal === undefined ? allowed : new RefusedCall(call, policies, scope, refusal);
}

async function refuseIfUndoInvalid(
  ctx: Context,
  deciding: StepResult<AllowedCall>,
): Promise<AllowedCall | RefusedCall> {
  const decided = await deciding;
  if (decided instanceof RefusedCall) return decided;
  try {
    await refuseInvalidUndo(ctx, decided.policies, decided.call.toolCall);
    return decided;
  } catch (error) {
    return toRefusedCall(decided, error);
  }
}

/** Derives the txn of an allowed call. */
export function identify(ctx: Context, allowed: AllowedCall): StepResult<IdentifiedCall> {
  const { call, decision } = allowed;
  try {
    const identified = identifyCall(ctx, call.toolCall, decision.tool, call.fingerprint);
    if (!(identified instanceof Promise)) return identified;
    return identified.catch((error: unknown) => toRefusedCall(allowed, error));
  } catch (error) {
    return toRefusedCall(allowed, error);
  }
}

/** Builds the request, asks the voters, and builds the claim guards. */
export function prepare(ctx: Context, allowed: AllowedCall, identified: IdentifiedCall): StepResult<PreparedCall> {
  const { poll } = allowed.decision;
  try {
    const prepared = buildPreparedCall(ctx, allowed, identified);
    if (poll !== undefined) return askVotersFirst(ctx, prepared, poll);
    prepared.guards = buildClaimGuards(ctx, prepared);
    return prepared;
  } catch (error) {
    return toRefusedCall(allowed, error);
  }
}

async function askVotersFirst(
  ctx: Context,
  prepared: PreparedCall,
  poll: VoterPoll,
): Promise<PreparedCall | RefusedCall> {
  const { allowed, identified } = prepared;
  const { call, policies, decision } = allowed;
  const { tool, rule } = decision;
  const { txn } = identified;
  const shown = () => describeForApproval(prepared);
  const voteSpan = ctx.telemetry.begin('vote', { tool: tool.name, agent: call.toolCall.agent.name, txn }, call.span);
  try {
    prepared.votes = await askVoters(ctx, { txn, tool, rule, poll, policies, shown }).finally(() => voteSpan.end());
    prepared.guards = buildClaimGuards(ctx, prepared);
    return prepared;
  } catch (error) {
    return toRefusedCall(allowed, error);
  }
}

function buildPreparedCall(ctx: Context, allowed: AllowedCall, identified: IdentifiedCall): PreparedCall {
  const { call, decision } = allowed;
  const { tool, rule } = decision;
  const request = ctx.adapters.getAdapter(tool).prepare(tool, toRequestInput(call), identified.txn);
  const hold = decision.hold ?? (identified.holdAsRepeat === true ? DEFAULT_APPROVAL : undefined);
  const heldMs = hold?.withinMs ?? rule.delayMs;
  refuseIfDisabled(ctx, call.toolCall.agent.name, tool, heldMs !== undefined);
  return { allowed, identified, request, hold, heldMs, votes: NO_VOTES, guards: undefined };
}

function toRequestInput({ toolCall, args: canonicalArgs, span }: ParsedCall): RequestInput {
  const { args, agent, progressListener, continuation } = toolCall;
  // The part of the MCP client that the request depends on.
  const clientProfile =
    progressListener === undefined
      ? undefined
      : {
          era: progressListener.era,
          capabilities: progressListener.capabilities,
          meta: progressListener.meta,
        };
  return { args, canonicalArgs, agent: agent.name, clientProfile, trace: span.trace, continuation };
}

/** The refusal that a step threw. Any other error, such as a ledger error, ends the call. */
function toRefusedCall({ call, policies, scope }: AllowedCall, error: unknown): RefusedCall {
  if (error instanceof GatewayError) return new RefusedCall(call, policies, scope, error);
  throw error;
}
