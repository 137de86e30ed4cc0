import { sha256Hex } from '../../domain/audit/audit.ts';
import type { CallSummary } from '../../domain/calls/call.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Policies, PolicyDecision, Rule, Tool } from '../../domain/policy.ts';
import type { LockConflict } from '../../ledger/controls/locks.ts';
import { canAllowTool, decideCall, hasVotersOrDelay } from '../../policy/decide.ts';
import type { Context } from '../context.ts';
import { buildLockedError } from '../controls/locks.ts';
import { type DecisionFacts, describeDecisionFacts, readDecisionFacts } from './decision-facts.ts';
import type { ToolCall } from './execute-call.ts';
import { Refusal } from './refusal.ts';

// The refusals of a call before its claim, in the order in which they are checked. Nothing is sent, and no key is bound.

/** The refusal by policy or by the input schema; undefined when the call is allowed. */
export function findRefusal(
  decision: PolicyDecision,
  tool: Tool | undefined,
  toolCall: ToolCall,
  facts: DecisionFacts,
): GatewayError | undefined {
  // An agent with a rule for the tool gets argument faults first, because a rule cannot judge missing arguments. Other agents
  // get no argument check, because it may be slow.
  const hasRule = tool !== undefined && (decision.allowed || canAllowTool(toolCall.agent, tool));
  const refusal = hasRule ? findArgumentRefusal(tool, toolCall.args) : undefined;
  if (refusal !== undefined || decision.allowed) return refusal;
  const rule = decision.rule === undefined ? {} : { rule: decision.rule.id };
  return new GatewayError(decision.code, decision.reason, { members: { ...rule, ...describeDecisionFacts(facts) } });
}

/** The refusal of arguments that break the input schema, or whose check takes too long; undefined when they are valid. */
export function findArgumentRefusal(tool: Tool, args: JsonObject, prefix = ''): GatewayError | undefined {
  const faults = tool.faults(args);
  if ('retryAfterMs' in faults) {
    const detail = `${prefix}Checking these arguments against the input schema of ${tool.name} takes too long, so nothing was sent.`;
    return new GatewayError('unavailable', detail, { retryAfterSeconds: Math.ceil(faults.retryAfterMs / 1000) });
  }
  if (faults.length === 0) return undefined;
  return new GatewayError('invalid_arguments', `${prefix}${faults.join('; ')}`, { members: { faults: [...faults] } });
}

/** Refuses a caller's undo that the agent could not call now. The undo may run later without another decision. */
export async function refuseInvalidUndo(ctx: Context, policies: Policies, toolCall: ToolCall): Promise<void> {
  const { agent, tool, undo, saga, runEpoch } = toolCall;
  if (undo === undefined) return;
  const origin = { saga: saga ?? null, run: runEpoch?.run ?? null };
  const facts = await readDecisionFacts(ctx, agent, undo.tool, origin);
  const input = { args: undo.args, ...origin, now: Date.now(), ...facts };
  const decision = decideCall(policies, agent, undo.tool, input);
  const declared = policies.tools.get(undo.tool);
  const hasRule = declared !== undefined && canAllowTool(agent, declared);
  const refusal = hasRule ? findArgumentRefusal(declared, undo.args, 'Oncegate-Undo: ') : undefined;
  if (refusal !== undefined) throw refusal;
  if (!decision.allowed)
    throw new GatewayError('denied', `Oncegate-Undo: ${decision.reason}`, {
      ...(decision.rule === undefined ? {} : { members: { rule: decision.rule.id } }),
    });
  if (decision.tool.effect === 'read')
    throw new GatewayError('invalid_arguments', `Oncegate-Undo: ${undo.tool} is a read, so it cannot undo anything.`);
  if (policies.tools.get(tool)?.effect === 'read')
    throw new GatewayError('invalid_arguments', `Oncegate-Undo: ${tool} is a read, so there is nothing to undo.`);
  if (decision.hold !== undefined || hasVotersOrDelay(decision.rule)) {
    const condition = decision.hold === undefined ? 'after its voters or its delay' : 'after an approval';
    const detail = `Oncegate-Undo: ${decision.rule.id} runs ${undo.tool} only ${condition}, so it cannot be promised as an undo.`;
    throw new GatewayError('denied', detail, { members: { rule: decision.rule.id } });
  }
}

/** Refuses while a freeze, a disabled tool, a faulty audit log or an open breaker forbids sends. A held call ignores the breaker. */
export function refuseIfDisabled(ctx: Context, agent: string, tool: Tool, isHeld: boolean): void {
  const frozen = ctx.controlFlags.findFreeze(agent, tool.name);
  if (frozen !== undefined) {
    throw new GatewayError('frozen', `${frozen.by} froze ${frozen.scope}: ${frozen.reason}`, { retryAfterSeconds: 5 });
  }
  if (tool.disabled !== undefined) {
    const disabled = new GatewayError('unavailable', `${tool.name} is disabled: ${tool.disabled}.`, {
      retryAfterSeconds: 60,
    });
    throw new Refusal(disabled, { reason: disabled.message });
  }
  const logFault = tool.effect === 'read' ? undefined : ctx.logMonitor.findFault();
  if (logFault !== undefined) throw new GatewayError('unavailable', logFault, { retryAfterSeconds: 5 });
  const waitMs = isHeld ? 0 : ctx.adapters.getAdapter(tool).getCooldownMs(tool);
  if (waitMs > 0) throw buildBreakerOpenError(ctx, tool.upstream, waitMs);
}

/** A breaker opened by hand stays open until a person closes it, so its `Retry-After` is only a guess. */
function buildBreakerOpenError({ controlFlags }: Context, upstream: string, waitMs: number): GatewayError {
  const manual = controlFlags.get(`breaker:${upstream}`);
  if (manual === undefined) {
    const detail = `The circuit breaker of ${upstream} is open because the upstream fails too often. Nothing was sent.`;
    return new GatewayError('breaker_open', detail, { retryAfterSeconds: Math.ceil(waitMs / 1000) });
  }
  const detail = `${manual.by} opened the breaker of ${upstream}: ${manual.reason}`;
  return new GatewayError('breaker_open', detail, { retryAfterSeconds: 5 });
}

/** A process without a lease must not claim. */
export function refuseUnlessLeaseHeld({ controlFlags }: Context, owner: string): void {
  if (controlFlags.canSend(owner)) return;
  const detail = 'This replica has lost its lease in the ledger, so nothing was sent. Ask again with the same key.';
  throw new GatewayError('unavailable', detail);
}

/** The rule and policies that allowed a call which its claim then refused. */
interface AdmittingRule {
  readonly policies: Policies;
  readonly rule: Rule;
}

export function buildOverLimitRefusal({ policies, rule }: AdmittingRule, refusal: GatewayError): Refusal {
  return new Refusal(refusal, { policy: policies.version, rule: rule.id, reason: refusal.message });
}

/** The policies were reloaded between two decisions about one call. The agent of the request belongs to the older policies. */
export function buildPoliciesChangedError(): GatewayError {
  const detail = 'The policies changed during the decision, so nothing was sent. Ask again with the same key.';
  return new GatewayError('unavailable', detail, { retryAfterSeconds: 1 });
}

/** Concurrent calls of the agent kept changing the history, and with it the rule that decides. */
export function buildUndecidedError(txn: string): GatewayError {
  const detail =
    'Concurrent calls of this agent keep changing the decision of its rules, so nothing was sent. Ask again with the same key.';
  return new GatewayError('unavailable', detail, { txn, retryAfterSeconds: 1 });
}

/** Another call holds a lock that this call needs. The audit log is permanent, so it gets only a hash of the name. */
export function buildLockedRefusal({ policies, rule }: AdmittingRule, by: LockConflict): Refusal {
  return new Refusal(buildLockedError(by), { policy: policies.version, rule: rule.id, resource: sha256Hex(by.wanted) });
}

/** The part of an earlier call that decides whether a request repeats it. */
type EarlierCall = Pick<CallSummary, 'txn' | 'agent' | 'tool' | 'identity' | 'saga' | 'state'>;

/** Refuses a key that belongs to another request. */
export function refuseKeyReuse(
  call: EarlierCall,
  callFingerprint: Buffer,
  toolCall: ToolCall,
  fingerprint: Buffer,
): void {
  const why = findKeyReuse(call, callFingerprint, toolCall, fingerprint);
  if (why === undefined) return;
  // A new idempotency key does not help: the shared key comes from the arguments.
  const retry = call.identity === 'shared' ? ({ retry: 'never' } as const) : {};
  const state = call.agent === toolCall.agent.name ? { state: call.state } : {};
  throw new GatewayError('key_reused', why, { txn: call.txn, ...state, ...retry });
}

/** Why a request does not repeat an earlier call with the same key; undefined when it does. */
export function findKeyReuse(
  call: EarlierCall,
  callFingerprint: Buffer,
  toolCall: ToolCall,
  fingerprint: Buffer,
): string | undefined {
  if (!callFingerprint.equals(fingerprint)) {
    if (call.identity !== 'shared')
      return `This key belongs to another call of ${call.tool}. Use a new key for a new call.`;
    return `The business key of these arguments belongs to a call of ${call.tool} with other arguments.`;
  }
  if (call.agent !== toolCall.agent.name) return findJoinConflict(toolCall);
  if (toolCall.saga === undefined || call.saga === toolCall.saga) return undefined;
  const where = call.saga === null ? 'no saga' : `saga ${call.saga}`;
  return `This key belongs to a call of ${where}, so it cannot be a step of saga ${toolCall.saga}. Use a new key.`;
}

/** An agent that joins a call cannot undo it. Only the agent that made the call first can. */
function findJoinConflict({ saga, undo }: ToolCall): string | undefined {
  if (saga === undefined && undo === undefined) return undefined;
  if (saga !== undefined)
    return 'Another agent made this call first, so it cannot be a step of your saga. Ask again without a saga.';
  return 'Another agent made this call first, so you cannot choose its undo. Ask again without an undo.';
}
