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

/** Why a call is not carried out, station by station. Nothing is sent, and no key is bound. */

/** By policy, or because the arguments do not fit; undefined when there is nothing to refuse. */
export function findRefusal(
  decision: PolicyDecision,
  tool: Tool | undefined,
  asked: ToolCall,
  facts: DecisionFacts,
): GatewayError | undefined {
  // Whoever may call the tool at all learns first what is wrong with the arguments: a rule cannot judge what is missing. Nobody
  // else has them checked, which may take a while.
  const isNear = tool !== undefined && (decision.allowed || canAllowTool(asked.agent, tool));
  const unfit = isNear ? findArgumentRefusal(tool, asked.args) : undefined;
  if (unfit !== undefined || decision.allowed) return unfit;
  const rule = decision.rule === undefined ? {} : { rule: decision.rule.id };
  return new GatewayError(decision.code, decision.reason, { members: { ...rule, ...describeDecisionFacts(facts) } });
}

/** Because they do not fit the tool, or nobody can say in time whether they do; undefined when they fit. */
export function findArgumentRefusal(tool: Tool, args: JsonObject, about = ''): GatewayError | undefined {
  const faults = tool.faults(args);
  if ('restsForMs' in faults) {
    const detail = `${about}It takes too long to tell whether these arguments fit ${tool.name}, so nothing was sent.`;
    return new GatewayError('unavailable', detail, { retryAfterSeconds: Math.ceil(faults.restsForMs / 1000) });
  }
  if (faults.length === 0) return undefined;
  return new GatewayError('invalid_arguments', `${about}${faults.join('; ')}`, { members: { faults: [...faults] } });
}

/** An undo that the agent names is judged as if the agent called it now: it may run without being asked again. */
export async function refuseInvalidUndo(station: Context, policies: Policies, asked: ToolCall): Promise<void> {
  const { agent, tool, undo, saga, fence } = asked;
  if (undo === undefined) return;
  const place = { saga: saga ?? null, run: fence?.run ?? null };
  const facts = await readDecisionFacts(station, agent, undo.tool, place);
  const call = { args: undo.args, ...place, now: Date.now(), ...facts };
  const decision = decideCall(policies, agent, undo.tool, call);
  const declared = policies.tools.get(undo.tool);
  const isCovered = declared !== undefined && canAllowTool(agent, declared);
  const unfit = isCovered ? findArgumentRefusal(declared, undo.args, 'Oncegate-Undo: ') : undefined;
  if (unfit !== undefined) throw unfit;
  if (!decision.allowed)
    throw new GatewayError('denied', `Oncegate-Undo: ${decision.reason}`, {
      ...(decision.rule === undefined ? {} : { members: { rule: decision.rule.id } }),
    });
  if (decision.tool.effect === 'read')
    throw new GatewayError('invalid_arguments', `Oncegate-Undo: ${undo.tool} is a read: it undoes nothing.`);
  if (policies.tools.get(tool)?.effect === 'read')
    throw new GatewayError('invalid_arguments', `Oncegate-Undo: ${tool} is a read: there is nothing to undo.`);
  if (decision.hold !== undefined || hasVotersOrDelay(decision.rule))
    throw new GatewayError(
      'denied',
      `Oncegate-Undo: ${decision.rule.id} lets ${undo.tool} run only when ${decision.hold === undefined ? 'its voters or its delay let' : 'a person approves'} it, so it cannot be promised.`,
      { members: { rule: decision.rule.id } },
    );
}

/** Switched off by people or sick: nothing is sent, and the key is not bound. A held call is not sent now anyway. */
export function refuseIfDisabled(station: Context, agent: string, tool: Tool, held: boolean): void {
  const frozen = station.switches.findFreeze(agent, tool.name);
  if (frozen !== undefined) {
    throw new GatewayError('frozen', `${frozen.by} froze ${frozen.scope}: ${frozen.reason}`, { retryAfterSeconds: 5 });
  }
  if (tool.disabled !== undefined) {
    const disabled = new GatewayError('unavailable', `${tool.name} is disabled: ${tool.disabled}.`, {
      retryAfterSeconds: 60,
    });
    throw new Refusal(disabled, { reason: disabled.message });
  }
  const doubt = tool.effect === 'read' ? undefined : station.logWatch.findFault();
  if (doubt !== undefined) throw new GatewayError('unavailable', doubt, { retryAfterSeconds: 5 });
  const waitMs = held ? 0 : station.adapters.getAdapter(tool).getCooldownMs(tool);
  if (waitMs > 0) throw buildBreakerOpenError(station, tool.upstream, waitMs);
}

/** One opened by hand is not closed by time, whatever its upstream does: nobody knows how long it stays so. */
function buildBreakerOpenError({ switches }: Context, upstream: string, waitMs: number): GatewayError {
  const hand = switches.get(`breaker:${upstream}`);
  if (hand === undefined) {
    const detail = `${upstream} fails too often and is left alone for a while.`;
    return new GatewayError('breaker_open', detail, { retryAfterSeconds: Math.ceil(waitMs / 1000) });
  }
  const detail = `${hand.by} opened the breaker of ${upstream}: ${hand.reason}`;
  return new GatewayError('breaker_open', detail, { retryAfterSeconds: 5 });
}

/** A process that has lost its lease must not even claim. */
export function refuseUnlessLeaseHeld({ switches }: Context, owner: string): void {
  if (!switches.canSend(owner)) throw new GatewayError('unavailable', 'The gateway has lost touch with its ledger.');
}

/** Under which rule a call was admitted that is refused after all. */
interface AdmittingRule {
  readonly policies: Policies;
  readonly rule: Rule;
}

export function buildOverLimitRefusal({ policies, rule }: AdmittingRule, refusal: GatewayError): Refusal {
  return new Refusal(refusal, { policy: policies.version, rule: rule.id, reason: refusal.message });
}

/** The agent that was decided about is one of the older policies. */
export function buildPoliciesChangedError(): GatewayError {
  const detail = 'The policies changed while this was decided, so nothing was sent. Ask again with the same key.';
  return new GatewayError('unavailable', detail, { retryAfterSeconds: 1 });
}

/** Two rules that take turns: what each allows makes the other one decide. */
export function buildUndecidedError(txn: string): GatewayError {
  const detail = 'What the agent does at the same time changes what its rules say, again and again; nothing was sent.';
  return new GatewayError('unavailable', detail, { txn, retryAfterSeconds: 1 });
}

/** What it needs is held. The log is for ever, so it has only what the name of that hashes to. */
export function buildLockedRefusal({ policies, rule }: AdmittingRule, by: LockConflict): Refusal {
  return new Refusal(buildLockedError(by), { policy: policies.version, rule: rule.id, resource: sha256Hex(by.wanted) });
}

/** As much of a call as tells whether it is the one that is asked for. */
type EarlierCall = Pick<CallSummary, 'txn' | 'agent' | 'tool' | 'identity' | 'saga' | 'state'>;

/** A key that was used for something else before. */
export function refuseKeyReuse(call: EarlierCall, first: Buffer, asked: ToolCall, fingerprint: Buffer): void {
  const why = findKeyReuse(call, first, asked, fingerprint);
  if (why === undefined) return;
  // No other key makes another call of a shared wish.
  const retry = call.identity === 'shared' ? ({ retry: 'never' } as const) : {};
  const state = call.agent === asked.agent.name ? { state: call.state } : {};
  throw new GatewayError('key_reused', why, { txn: call.txn, ...state, ...retry });
}

/** Why a call that is there is not the one that is asked for; undefined when it is. */
export function findKeyReuse(
  call: EarlierCall,
  first: Buffer,
  asked: ToolCall,
  fingerprint: Buffer,
): string | undefined {
  if (!first.equals(fingerprint)) {
    if (call.identity !== 'shared')
      return `This key belongs to another call of ${call.tool}. Use a new key for a new call.`;
    return `The key that these arguments give belongs to a call of ${call.tool} with other arguments.`;
  }
  if (call.agent !== asked.agent.name) return findJoinConflict(asked);
  if (asked.saga === undefined || call.saga === asked.saga) return undefined;
  const where = call.saga === null ? 'no saga' : `saga ${call.saga}`;
  return `This key belongs to a call of ${where}: it cannot be a step of this one.`;
}

/** Whoever joins a call can promise nothing about undoing it: that is for whoever asked first. */
function findJoinConflict({ saga, undo }: ToolCall): string | undefined {
  if (saga === undefined && undo === undefined) return undefined;
  const what = saga === undefined ? 'its undo is not yours to say' : 'it cannot be a step of your saga';
  return `Another agent asked for this first, so ${what}. Ask without it to be told how it went.`;
}
