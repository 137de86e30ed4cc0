import type { CallRecord } from '../../domain/calls/call-record.ts';
import { pathsUnder, redact } from '../../domain/calls/redact.ts';
import { computeFingerprint } from '../../domain/calls/txn-id.ts';
import { canonicalize } from '../../domain/canonical.ts';
import { ERRORS, type ErrorCode, GatewayError } from '../../domain/errors.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import type { PolicyDecision, Rule, Tool, VoterPoll } from '../../domain/policy.ts';
import { readCurrentUsage } from '../../ledger/calls/limits.ts';
import { findConflict, type LockRequest } from '../../ledger/controls/locks.ts';
import { canAllowTool, explainDecision } from '../../policy/decide.ts';
import { canReachQuorum } from '../../policy/evaluate-voters.ts';
import { previewUndo } from '../approvals/approval-request.ts';
import type { Context } from '../context.ts';
import { buildLockRequest } from '../controls/locks.ts';
import { refuseStaleEpoch } from '../controls/runs.ts';
import { refuseClosedSaga, refuseForeignDependencies } from '../sagas/sagas.ts';
import { describeDecisionFacts, readDecisionFacts } from './decision-facts.ts';
import type { ToolCall } from './execute-call.ts';
import { findEarlierCall } from './find-replay.ts';
import { identifyCall } from './identify-call.ts';
import { computeCharges } from './limits.ts';
import { findArgumentRefusal, findKeyReuse, refuseInvalidUndo } from './refusals.ts';
import { isAliasTaken, isParticipant, resolveAlias } from './shared-keys.ts';

const MAX_LOCKS_SHOWN = 100;

type AllowedDecision = Extract<PolicyDecision, { allowed: true }>;

/**
 * Decides and explains what would happen to a call. Sends nothing and binds nothing. Faults of the request itself, which
 * `buildToolCall` throws, are explained in the same way.
 */
export async function dryRun(ctx: Context, buildToolCall: () => ToolCall): Promise<JsonObject> {
  try {
    return await explainCall(ctx, buildToolCall());
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return { dryRun: true, detail: error.message, ...error.extras.members, wouldAnswer: renderRefusal(error.code) };
  }
}

async function explainCall(ctx: Context, toolCall: ToolCall): Promise<JsonObject> {
  const policies = ctx.policies();
  const origin = { saga: toolCall.saga ?? null, run: toolCall.runEpoch?.run ?? null };
  const facts = await readDecisionFacts(ctx, toolCall.agent, toolCall.tool, origin);
  const scope = { args: toolCall.args, ...origin, now: Date.now(), ...facts };
  const { decision, tried } = explainDecision(policies, toolCall.agent, toolCall.tool, scope);
  const tool = policies.tools.get(toolCall.tool);
  const fingerprint = computeFingerprint(toolCall.tool, canonicalize(toolCall.args));
  const explained: JsonObject = {
    dryRun: true,
    tool: toolCall.tool,
    policyVersion: policies.version,
    decision: {
      allowed: decision.allowed,
      rule: decision.rule?.id ?? null,
      reason: decision.allowed ? null : decision.reason,
      tried: tried.map(({ rule, matched, why }) => ({ rule: rule.id, verdict: rule.verdict, matched, why })),
    },
    ...describeDecisionFacts(facts),
  };
  const explainRefusal = async (code: ErrorCode, why: JsonObject): Promise<JsonObject> => {
    const earlier = await findEarlierCall(ctx, toolCall, tool, fingerprint);
    return {
      ...explained,
      ...why,
      wouldAnswer: earlier === undefined ? renderRefusal(code) : renderRepeatAnswer(earlier),
    };
  };
  const hasRule = tool !== undefined && canAllowTool(toolCall.agent, tool);
  const refusal = hasRule ? findArgumentRefusal(tool, toolCall.args) : undefined;
  if (refusal !== undefined) return explainRefusal(refusal.code, refusal.extras.members ?? { detail: refusal.message });
  if (!decision.allowed) return explainRefusal(decision.code, {});
  try {
    return {
      ...explained,
      ...(await planCall(ctx, toolCall, decision, fingerprint)),
    };
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return explainRefusal(error.code, { detail: error.message });
  }
}

async function planCall(
  ctx: Context,
  toolCall: ToolCall,
  { tool, rule, hold, poll }: AllowedDecision,
  fingerprint: Buffer,
): Promise<JsonObject> {
  await refuseInvalidUndo(ctx, ctx.policies(), toolCall);
  const identified = await identifyCall(ctx, toolCall, tool, fingerprint);
  const direct = await ctx.calls.read(identified.txn);
  const found = direct ?? (identified.identity === 'key' ? await resolveAlias(ctx, identified.txn) : undefined);
  // A dry run reveals nothing about the calls of other agents.
  const earlier = found !== undefined && (await isParticipant(ctx, found, toolCall.agent.name)) ? found : undefined;
  const isHeld = hold !== undefined || identified.holdAsRepeat === true || rule.delayMs !== undefined;
  const limits = await readLimitUsage(ctx, toolCall, rule);
  const lockRequest = buildLockRequest(ctx, tool, { ...toLockingCall(toolCall), txn: identified.txn });
  const plan: JsonObject = {
    txn: identified.txn,
    identifiedBy: identified.identity,
    effect: tool.effect,
    once: tool.effect === 'read' ? null : tool.once.by,
    undo: previewUndo(tool, toolCall, ctx.policies()) as JsonObject,
    hold: isHeld,
    ...(rule.delayMs === undefined ? {} : { delaySeconds: rule.delayMs / 1000 }),
    ...(poll === undefined ? {} : { voters: renderVoters(poll) }),
    limits: limits.map(({ charge, used }) => ({
      kind: charge.kind,
      max: charge.max,
      perSeconds: charge.perMs / 1000,
      used,
      costs: charge.amount,
    })),
    locks: renderLocks(lockRequest),
    request: previewRequest(ctx, toolCall, tool, identified.txn),
  };
  const { alias, txn } = identified;
  if (alias !== undefined && (await isAliasTaken(ctx, alias, txn)))
    return { ...plan, wouldAnswer: renderRefusal('key_reused') };
  if (earlier === undefined) {
    if (toolCall.runEpoch !== undefined) await refuseStaleEpoch(ctx, toolCall.runEpoch, toolCall.agent.name);
    if (toolCall.saga !== undefined) await refuseClosedSaga(ctx, toolCall.saga, toolCall.agent.name);
    await refuseForeignDependencies(ctx, toolCall);
    const code =
      findDisabledCode(ctx, toolCall.agent.name, tool, isHeld) ??
      (poll !== undefined && !canReachQuorum(poll) ? 'denied' : undefined) ??
      limits.find(({ fits }) => !fits)?.code ??
      (await findLockConflictCode(ctx, isHeld ? undefined : lockRequest));
    if (code !== undefined) return { ...plan, earlier: null, wouldAnswer: renderRefusal(code) };
    return {
      ...plan,
      earlier: null,
      wouldAnswer: isHeld ? { status: 202, state: 'held', sends: false } : { status: 200, sends: true },
    };
  }
  if (findKeyReuse(earlier, earlier.fingerprint, toolCall, fingerprint) !== undefined)
    return { ...plan, wouldAnswer: renderRefusal('key_reused') };
  return { ...plan, earlier: { state: earlier.state }, wouldAnswer: renderRepeatAnswer(earlier) };
}

/** The votes of expressions as they are now. A webhook is not called: its verdict is null, and the plan assumes that it approves. */
function renderVoters({ quorum, votes, open }: VoterPoll): JsonObject {
  return {
    quorum,
    of: [
      ...votes.map(({ voter, verdict }) => ({ voter, by: 'when', verdict })),
      ...open.map(({ name }) => ({ voter: name, by: 'webhook', verdict: null })),
    ],
  };
}

function toLockingCall({ agent, args, saga, runEpoch }: ToolCall) {
  return { agent: agent.name, args, saga: saga ?? null, run: runEpoch?.run ?? null };
}

function renderLocks(lockRequest: LockRequest | undefined): Json {
  const locks = lockRequest?.locks.slice(0, MAX_LOCKS_SHOWN) ?? [];
  return locks.map(({ displayName, mode, for: scope }) => ({ resource: displayName, mode, for: scope }));
}

/** Reads the locks of this moment. The holder may release them while a real caller waits. */
async function findLockConflictCode(
  { db }: Context,
  lockRequest: LockRequest | undefined,
): Promise<ErrorCode | undefined> {
  if (lockRequest === undefined) return undefined;
  return (await findConflict(db, lockRequest)) === undefined ? undefined : 'locked';
}

function findDisabledCode(ctx: Context, agent: string, tool: Tool, isHeld: boolean): ErrorCode | undefined {
  if (ctx.controlFlags.findFreeze(agent, tool.name) !== undefined) return 'frozen';
  if (tool.disabled !== undefined) return 'unavailable';
  if (tool.effect !== 'read' && ctx.logMonitor.findFault() !== undefined) return 'unavailable';
  return !isHeld && ctx.adapters.getAdapter(tool).getCooldownMs(tool) > 0 ? 'breaker_open' : undefined;
}

/** The current usage of the rule's limits, and whether this call would fit. A dry run counts nothing. */
async function readLimitUsage(ctx: Context, toolCall: ToolCall, rule: Rule) {
  const scope = {
    args: toolCall.args,
    agent: toolCall.agent.name,
    tool: toolCall.tool,
    saga: toolCall.saga ?? null,
    run: toolCall.runEpoch?.run ?? null,
    now: Date.now(),
  };
  return Promise.all(
    computeCharges(rule, scope).map(async (charge) => {
      const used = await readCurrentUsage(ctx.db, charge);
      const code: ErrorCode = charge.kind === 'rate' ? 'rate_limited' : 'over_budget';
      return { charge, used, fits: used + charge.amount <= charge.max, code };
    }),
  );
}

/** The answer to a repeat of this call. For an open call: if it stays open while the caller waits. */
function renderRepeatAnswer(call: CallRecord): JsonObject {
  if (call.erasedAt !== null) return renderRefusal('key_expired');
  if (call.problem !== null) return { ...renderRefusal(call.problem), replayed: true };
  if (call.state === 'succeeded') return { status: 200, replayed: true, sends: false };
  if (call.state === 'held') return { status: 202, state: 'held', replayed: true, sends: false };
  return { ...renderRefusal(call.state === 'in_doubt' ? 'in_doubt' : 'in_progress'), replayed: true };
}

/** The request that would be sent, redacted. The real arguments are tried first, so that their faults reach the caller. */
function previewRequest(ctx: Context, toolCall: ToolCall, tool: Tool, txn: string): Json {
  const adapter = ctx.adapters.getAdapter(tool);
  const agent = toolCall.agent.name;
  let request = adapter.prepare(tool, { args: toolCall.args, agent }, txn);
  const paths = pathsUnder('args', tool.redact);
  if (paths.length > 0) {
    try {
      request = adapter.prepare(tool, { args: redact(toolCall.args, paths) as JsonObject, agent }, txn);
    } catch (error) {
      if (error instanceof GatewayError) return null;
      throw error;
    }
  }
  const { method, path, body } = request;
  return { upstream: tool.upstream, method, path, body };
}

function renderRefusal(code: ErrorCode): JsonObject {
  return { status: ERRORS[code].status, code, retry: ERRORS[code].retry, sends: false };
}
