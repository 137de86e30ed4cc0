import type { Call } from '../../domain/calls/call.ts';
import { pathsUnder, redact } from '../../domain/calls/redact.ts';
import { computeFingerprint as fingerprintOf } from '../../domain/calls/txn-id.ts';
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
import { identifyCall } from './identify-call.ts';
import { computeSpends } from './limits.ts';
import { findArgumentRefusal, findKeyReuse, refuseInvalidUndo } from './refuse.ts';
import { findEarlierCall } from './repeat-call.ts';
import { isAliasTaken, isParticipant, resolveAlias } from './shared-keys.ts';

/** Of what would be locked. */
const MAX_LOCKS_SHOWN = 100;

type AllowedDecision = Extract<PolicyDecision, { allowed: true }>;

/**
 * Decides and explains everything that the call would meet, sends nothing and binds nothing. What is wrong before there is
 * a call to decide about (`ask` throws) is told in the same way.
 */
export async function dryRun(station: Context, ask: () => ToolCall): Promise<JsonObject> {
  try {
    return await explainCall(station, ask());
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return { dryRun: true, detail: error.message, ...error.extras.members, wouldAnswer: renderRefusal(error.code) };
  }
}

async function explainCall(station: Context, asked: ToolCall): Promise<JsonObject> {
  const policies = station.policies();
  const place = { saga: asked.saga ?? null, run: asked.fence?.run ?? null };
  const facts = await readDecisionFacts(station, asked.agent, asked.tool, place);
  const scope = { args: asked.args, ...place, now: Date.now(), ...facts };
  const { decision, tried } = explainDecision(policies, asked.agent, asked.tool, scope);
  const tool = policies.tools.get(asked.tool);
  const fingerprint = fingerprintOf(asked.tool, canonicalize(asked.args));
  const explained: JsonObject = {
    dryRun: true,
    tool: asked.tool,
    policyVersion: policies.version,
    decision: {
      allowed: decision.allowed,
      rule: decision.rule?.id ?? null,
      reason: decision.allowed ? null : decision.reason,
      tried: tried.map(({ rule, matched, why }) => ({ rule: rule.id, verdict: rule.verdict, matched, why })),
    },
    ...describeDecisionFacts(facts),
  };
  const refused = async (code: ErrorCode, why: JsonObject): Promise<JsonObject> => {
    const earlier = await findEarlierCall(station, asked, tool, fingerprint);
    return {
      ...explained,
      ...why,
      wouldAnswer: earlier === undefined ? renderRefusal(code) : renderRepeatAnswer(earlier),
    };
  };
  const isCovered = tool !== undefined && canAllowTool(asked.agent, tool);
  const unfit = isCovered ? findArgumentRefusal(tool, asked.args) : undefined;
  if (unfit !== undefined) return refused(unfit.code, unfit.extras.members ?? { detail: unfit.message });
  if (!decision.allowed) return refused(decision.code, {});
  try {
    return {
      ...explained,
      ...(await planCall(station, asked, decision, fingerprint)),
    };
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return refused(error.code, { detail: error.message });
  }
}

async function planCall(
  station: Context,
  asked: ToolCall,
  { tool, rule, hold, poll }: AllowedDecision,
  fingerprint: Buffer,
): Promise<JsonObject> {
  await refuseInvalidUndo(station, station.policies(), asked);
  const identified = await identifyCall(station, asked, tool, fingerprint);
  const found = await station.calls.read(identified.txn);
  const meant = found ?? (identified.identity === 'key' ? await resolveAlias(station, identified.txn) : undefined);
  // Whoever only tries learns nothing of what others did.
  const earlier = meant !== undefined && (await isParticipant(station, meant, asked.agent.name)) ? meant : undefined;
  const held = hold !== undefined || identified.holdAsRepeat === true || rule.delayMs !== undefined;
  const limits = await readLimitUsage(station, asked, rule);
  const order = buildLockRequest(station, tool, { ...toLockingCall(asked), txn: identified.txn });
  const plan: JsonObject = {
    txn: identified.txn,
    identifiedBy: identified.identity,
    effect: tool.effect,
    once: tool.effect === 'read' ? null : tool.once.by,
    undo: previewUndo(tool, asked, station.policies()) as JsonObject,
    hold: held,
    ...(rule.delayMs === undefined ? {} : { delaySeconds: rule.delayMs / 1000 }),
    ...(poll === undefined ? {} : { voters: renderVoters(poll) }),
    limits: limits.map(({ spend, used }) => ({
      kind: spend.kind,
      max: spend.max,
      perSeconds: spend.perMs / 1000,
      used,
      costs: spend.amount,
    })),
    locks: renderLocks(order),
    request: previewRequest(station, asked, tool, identified.txn),
  };
  const { alias, txn } = identified;
  if (alias !== undefined && (await isAliasTaken(station, alias, txn)))
    return { ...plan, wouldAnswer: renderRefusal('key_reused') };
  if (earlier === undefined) {
    if (asked.fence !== undefined) await refuseStaleEpoch(station, asked.fence, asked.agent.name);
    if (asked.saga !== undefined) await refuseClosedSaga(station, asked.saga, asked.agent.name);
    await refuseForeignDependencies(station, asked);
    const code =
      findDisabledCode(station, asked.agent.name, tool, held) ??
      (poll !== undefined && !canReachQuorum(poll) ? 'denied' : undefined) ??
      limits.find(({ fits }) => !fits)?.code ??
      (await findLockConflictCode(station, held ? undefined : order));
    if (code !== undefined) return { ...plan, earlier: null, wouldAnswer: renderRefusal(code) };
    return {
      ...plan,
      earlier: null,
      wouldAnswer: held ? { status: 202, state: 'held', sends: false } : { status: 200, sends: true },
    };
  }
  if (findKeyReuse(earlier, earlier.fingerprint, asked, fingerprint) !== undefined)
    return { ...plan, wouldAnswer: renderRefusal('key_reused') };
  return { ...plan, earlier: { state: earlier.state }, wouldAnswer: renderRepeatAnswer(earlier) };
}

/** What the voters' expressions say now. Nobody is asked: the verdict of a webhook is null, and the answer supposes its approval. */
function renderVoters({ quorum, votes, open }: VoterPoll): JsonObject {
  return {
    quorum,
    of: [
      ...votes.map(({ voter, verdict }) => ({ voter, by: 'when', verdict })),
      ...open.map(({ name }) => ({ voter: name, by: 'webhook', verdict: null })),
    ],
  };
}

function toLockingCall({ agent, args, saga, fence }: ToolCall) {
  return { agent: agent.name, args, saga: saga ?? null, run: fence?.run ?? null };
}

function renderLocks(order: LockRequest | undefined): Json {
  const wishes = order?.locks.slice(0, MAX_LOCKS_SHOWN) ?? [];
  return wishes.map(({ displayName: shown, mode, for: scope }) => ({ resource: shown, mode, for: scope }));
}

/** As things stand: whoever holds it may let go while a caller waits. */
async function findLockConflictCode({ db }: Context, order: LockRequest | undefined): Promise<ErrorCode | undefined> {
  if (order === undefined) return undefined;
  return (await findConflict(db, order)) === undefined ? undefined : 'locked';
}

function findDisabledCode(station: Context, agent: string, tool: Tool, held: boolean): ErrorCode | undefined {
  if (station.switches.findFreeze(agent, tool.name) !== undefined) return 'frozen';
  if (tool.disabled !== undefined) return 'unavailable';
  if (tool.effect !== 'read' && station.logWatch.findFault() !== undefined) return 'unavailable';
  return !held && station.adapters.getAdapter(tool).getCooldownMs(tool) > 0 ? 'breaker_open' : undefined;
}

/** What is used of the rule's limits now, and whether this call would fit; counted when it is really made. */
async function readLimitUsage(station: Context, asked: ToolCall, rule: Rule) {
  const scope = {
    args: asked.args,
    agent: asked.agent.name,
    tool: asked.tool,
    saga: asked.saga ?? null,
    run: asked.fence?.run ?? null,
    now: Date.now(),
  };
  return Promise.all(
    computeSpends(rule, scope).map(async (spend) => {
      const used = await readCurrentUsage(station.db, spend);
      const code: ErrorCode = spend.kind === 'rate' ? 'rate_limited' : 'over_budget';
      return { spend, used, fits: used + spend.amount <= spend.max, code };
    }),
  );
}

/** What a repeat of this call is answered; of one still under way, if it stays so while the caller waits. */
function renderRepeatAnswer(call: Call): JsonObject {
  if (call.erasedAt !== null) return renderRefusal('key_expired');
  if (call.problem !== null) return { ...renderRefusal(call.problem), replayed: true };
  if (call.state === 'succeeded') return { status: 200, replayed: true, sends: false };
  if (call.state === 'held') return { status: 202, state: 'held', replayed: true, sends: false };
  return { ...renderRefusal(call.state === 'in_doubt' ? 'in_doubt' : 'in_progress'), replayed: true };
}

/** What would be sent, without what the tool redacts. The real arguments are tried first: their faults are the caller's. */
function previewRequest(station: Context, asked: ToolCall, tool: Tool, txn: string): Json {
  const adapter = station.adapters.getAdapter(tool);
  const agent = asked.agent.name;
  let request = adapter.prepare(tool, { args: asked.args, agent }, txn);
  const paths = pathsUnder('args', tool.redact);
  if (paths.length > 0) {
    try {
      request = adapter.prepare(tool, { args: redact(asked.args, paths) as JsonObject, agent }, txn);
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
