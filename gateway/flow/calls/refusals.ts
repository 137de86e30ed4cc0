import { type AuditFields, buildAuditEntry, sha256Hex } from '../../domain/audit/audit.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
import { type ErrorCode, type ErrorExtras, GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Policies, PolicyDecision, Tool } from '../../domain/policy.ts';
import { enqueueAuditEntry } from '../../ledger/audit/audit-queue.ts';
import type { LimitExceeded } from '../../ledger/calls/limits.ts';
import type { LockConflict } from '../../ledger/controls/locks.ts';
import { canAllowTool, decideCall, hasVotersOrDelay } from '../../policy/decide.ts';
import type { Context } from '../context.ts';
import { buildLockedError } from '../controls/locks.ts';
import type { AllowedCall } from './admit-call.ts';
import { type DecisionFacts, describeDecisionFacts, readDecisionFacts } from './decision-facts.ts';
import type { ParsedCall, ToolCall } from './execute-call.ts';
import { buildLimitExceededError } from './limits.ts';

/** The audit event of each refusal. A refused call leaves no row, so the audit log is its only record. */
const AUDIT_EVENT_BY_CODE: Partial<Readonly<Record<ErrorCode, string>>> = {
  denied: 'denied',
  unknown_tool: 'unknown_tool',
  fenced: 'fenced',
  locked: 'locked',
  rate_limited: 'rate_limited',
  over_budget: 'over_budget',
  // These codes are already the names of other audit events, such as a freeze by a person.
  frozen: 'refused',
  breaker_open: 'refused',
  saga_closed: 'refused',
  key_reused: 'refused',
  key_expired: 'refused',
  forbidden: 'refused',
};

/**
 * A refusal with its own audit fields. It is logged even if `AUDIT_EVENT_BY_CODE` does not list its code. Null: the audit log
 * has an entry about it already.
 */
export class Refusal extends GatewayError {
  readonly auditFields: AuditFields | null;

  constructor(
    { code, message, extras }: { code: ErrorCode; message: string; extras?: ErrorExtras },
    auditFields: AuditFields | null,
  ) {
    super(code, message, extras);
    this.auditFields = auditFields;
  }
}

/** The call was claimed and released without a send. The release is in the audit log already. */
export function buildReleasedError(txn: string, code: ErrorCode, detail: string): Refusal {
  const message = `Nothing was sent: ${detail}. The key can be used again.`;
  return new Refusal({ code, message, extras: { txn, retryAfterSeconds: 1 } }, null);
}

/** Runs work and logs its refusal. If the refusal cannot be logged, the caller gets the ledger error instead. */
export async function logIfRefused<T>(ctx: Context, subject: AuditFields, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await logRefusal(ctx, subject, error);
    throw error;
  }
}

/** Whether the audit log gets an entry: the error is a decision against a call, not a malformed request or a failure. */
export function isLoggedRefusal(error: GatewayError): boolean {
  return error instanceof Refusal ? error.auditFields !== null : AUDIT_EVENT_BY_CODE[error.code] !== undefined;
}

/** Logs a refusal. Ignores any other error. */
export async function logRefusal(ctx: Context, subject: AuditFields, error: unknown): Promise<void> {
  if (!(error instanceof GatewayError) || !isLoggedRefusal(error)) return;
  const { code, message, extras } = error;
  const event = AUDIT_EVENT_BY_CODE[code] ?? 'refused';
  const reasons = (error instanceof Refusal ? error.auditFields : null) ?? { reason: message };
  const fields = { txn: extras.txn, ...subject, policy: ctx.policies().version, ...reasons };
  await enqueueAuditEntry(ctx.db, buildAuditEntry(event, event === code ? fields : { ...fields, code }));
}

// The refusals of a call until its claim, in the order in which they are checked. Nothing is sent, and no key is bound.

type DeniedDecision = Extract<PolicyDecision, { allowed: false }>;

/** The refusal of a call that the rules deny. */
export function buildDeniedError(
  decision: DeniedDecision,
  tool: Tool | undefined,
  toolCall: ToolCall,
  facts: DecisionFacts,
): GatewayError {
  // An agent with a rule for the tool gets argument faults first, because a rule cannot judge missing arguments. Other agents
  // get no argument check, because it may be slow.
  const hasRule = tool !== undefined && canAllowTool(toolCall.agent, tool);
  const refusal = hasRule ? findArgumentRefusal(tool, toolCall.args) : undefined;
  if (refusal !== undefined) return refusal;
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

/** The rules allowed the call, but a limit is used up. */
export function buildOverLimitRefusal({ policies, decision }: AllowedCall, exceeded: LimitExceeded): Refusal {
  const { id } = decision.rule;
  const refusal = buildLimitExceededError(exceeded, id);
  return new Refusal(refusal, { policy: policies.version, rule: id, reason: refusal.message });
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
export function buildLockedRefusal({ policies, decision }: AllowedCall, by: LockConflict): Refusal {
  const fields = { policy: policies.version, rule: decision.rule.id, resource: sha256Hex(by.wanted) };
  return new Refusal(buildLockedError(by), fields);
}

/** The part of an earlier call that decides whether a request repeats it. */
type EarlierCall = Pick<CallRecord, 'txn' | 'agent' | 'tool' | 'identity' | 'saga' | 'state'>;

/** Refuses a key that belongs to another request. */
export function refuseKeyReuse(
  call: EarlierCall,
  callFingerprint: Buffer,
  { toolCall, fingerprint }: ParsedCall,
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
