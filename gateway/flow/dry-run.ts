import type { Call } from '../domain/call.ts';
import { canonical } from '../domain/canonical.ts';
import { ERRORS, type ErrorCode, GatewayError } from '../domain/errors.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { Decision, Poll, Rule, Tool } from '../domain/policy.ts';
import { pathsUnder, redact } from '../domain/redact.ts';
import { fingerprint as fingerprintOf } from '../domain/txn-id.ts';
import { usedNow } from '../ledger/limits.ts';
import { findConflict, type LockOrder } from '../ledger/locks.ts';
import { coversByName, explain } from '../policy/decide.ts';
import { isOpen } from '../policy/poll.ts';
import type { ToolCall } from './call-tool.ts';
import { factsOf, factsShown } from './facts.ts';
import { undoShown } from './hold.ts';
import { identifyCall } from './identify-call.ts';
import { isOfAnother, meantBy, tookPart } from './join.ts';
import { lockOrderOf } from './locking.ts';
import { refusalOfArguments, refuseUndo, whyAnother } from './refuse.ts';
import { earlierCall } from './repeat-call.ts';
import { refuseFenced } from './runs.ts';
import { refuseClosed, refuseStrangeDependencies } from './sagas.ts';
import { spendsOf } from './spending.ts';
import type { Station } from './station.ts';

/** Of what would be locked. */
const MOST_SHOWN = 100;

type Allowed = Extract<Decision, { allowed: true }>;

/**
 * Decides and explains everything that the call would meet, sends nothing and binds nothing. What is wrong before there is
 * a call to decide about (`ask` throws) is told in the same way.
 */
export async function dryRun(station: Station, ask: () => ToolCall): Promise<JsonObject> {
  try {
    return await explainCall(station, ask());
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return { dryRun: true, detail: error.message, ...error.extras.members, wouldAnswer: refusal(error.code) };
  }
}

async function explainCall(station: Station, asked: ToolCall): Promise<JsonObject> {
  const policies = station.policies();
  const place = { saga: asked.saga ?? null, run: asked.fence?.run ?? null };
  const facts = await factsOf(station, asked.agent, asked.tool, place);
  const scope = { args: asked.args, ...place, now: Date.now(), ...facts };
  const { decision, tried } = explain(policies, asked.agent, asked.tool, scope);
  const tool = policies.tools.get(asked.tool);
  const fingerprint = fingerprintOf(asked.tool, canonical(asked.args));
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
    ...factsShown(facts),
  };
  const refused = async (code: ErrorCode, why: JsonObject): Promise<JsonObject> => {
    const earlier = await earlierCall(station, asked, tool, fingerprint);
    return { ...explained, ...why, wouldAnswer: earlier === undefined ? refusal(code) : answerOf(earlier) };
  };
  const isCovered = tool !== undefined && coversByName(asked.agent, tool);
  const unfit = isCovered ? refusalOfArguments(tool, asked.args) : undefined;
  if (unfit !== undefined) return refused(unfit.code, unfit.extras.members ?? { detail: unfit.message });
  if (!decision.allowed) return refused(decision.code, {});
  try {
    return {
      ...explained,
      ...(await whatWouldHappen(station, asked, decision, fingerprint)),
    };
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return refused(error.code, { detail: error.message });
  }
}

async function whatWouldHappen(
  station: Station,
  asked: ToolCall,
  { tool, rule, hold, poll }: Allowed,
  fingerprint: Buffer,
): Promise<JsonObject> {
  await refuseUndo(station, station.policies(), asked);
  const identified = await identifyCall(station, asked, tool, fingerprint);
  const found = await station.calls.read(identified.txn);
  const meant = found ?? (identified.identity === 'key' ? await meantBy(station, identified.txn) : undefined);
  // Whoever only tries learns nothing of what others did.
  const earlier = meant !== undefined && (await tookPart(station, meant, asked.agent.name)) ? meant : undefined;
  const held = hold !== undefined || identified.holdAsRepeat === true || rule.delayMs !== undefined;
  const limits = await limitsOf(station, asked, rule);
  const order = lockOrderOf(station, tool, { ...whoseLocks(asked), txn: identified.txn });
  const plan: JsonObject = {
    txn: identified.txn,
    identifiedBy: identified.identity,
    effect: tool.effect,
    once: tool.effect === 'read' ? null : tool.once.by,
    undo: undoShown(tool, asked, station.policies()) as JsonObject,
    hold: held,
    ...(rule.delayMs === undefined ? {} : { delaySeconds: rule.delayMs / 1000 }),
    ...(poll === undefined ? {} : { voters: votersOf(poll) }),
    limits: limits.map(({ spend, used }) => ({
      kind: spend.kind,
      max: spend.max,
      perSeconds: spend.perMs / 1000,
      used,
      costs: spend.amount,
    })),
    locks: locksShown(order),
    request: shownRequest(station, asked, tool, identified.txn),
  };
  const { alias, txn } = identified;
  if (alias !== undefined && (await isOfAnother(station, alias, txn)))
    return { ...plan, wouldAnswer: refusal('key_reused') };
  if (earlier === undefined) {
    if (asked.fence !== undefined) await refuseFenced(station, asked.fence, asked.agent.name);
    if (asked.saga !== undefined) await refuseClosed(station, asked.saga, asked.agent.name);
    await refuseStrangeDependencies(station, asked);
    const code =
      whatIsOff(station, asked.agent.name, tool, held) ??
      (poll !== undefined && !isOpen(poll) ? 'denied' : undefined) ??
      limits.find(({ fits }) => !fits)?.code ??
      (await isLockedNow(station, held ? undefined : order));
    if (code !== undefined) return { ...plan, earlier: null, wouldAnswer: refusal(code) };
    return {
      ...plan,
      earlier: null,
      wouldAnswer: held ? { status: 202, state: 'held', sends: false } : { status: 200, sends: true },
    };
  }
  if (whyAnother(earlier, earlier.fingerprint, asked, fingerprint) !== undefined)
    return { ...plan, wouldAnswer: refusal('key_reused') };
  return { ...plan, earlier: { state: earlier.state }, wouldAnswer: answerOf(earlier) };
}

/** What the voters' expressions say now. Nobody is asked: the verdict of a webhook is null, and the answer supposes its approval. */
function votersOf({ quorum, votes, open }: Poll): JsonObject {
  return {
    quorum,
    of: [
      ...votes.map(({ voter, verdict }) => ({ voter, by: 'when', verdict })),
      ...open.map(({ name }) => ({ voter: name, by: 'webhook', verdict: null })),
    ],
  };
}

function whoseLocks({ agent, args, saga, fence }: ToolCall) {
  return { agent: agent.name, args, saga: saga ?? null, run: fence?.run ?? null };
}

function locksShown(order: LockOrder | undefined): Json {
  const wishes = order?.wishes.slice(0, MOST_SHOWN) ?? [];
  return wishes.map(({ shown, mode, for: scope }) => ({ resource: shown, mode, for: scope }));
}

/** As things stand: whoever holds it may let go while a caller waits. */
async function isLockedNow({ db }: Station, order: LockOrder | undefined): Promise<ErrorCode | undefined> {
  if (order === undefined) return undefined;
  return (await findConflict(db, order)) === undefined ? undefined : 'locked';
}

function whatIsOff(station: Station, agent: string, tool: Tool, held: boolean): ErrorCode | undefined {
  if (station.switches.frozen(agent, tool.name) !== undefined) return 'frozen';
  if (tool.disabled !== undefined) return 'unavailable';
  if (tool.effect !== 'read' && station.logWatch.doubt() !== undefined) return 'unavailable';
  return !held && station.adapters.for(tool).heldBackMs(tool) > 0 ? 'breaker_open' : undefined;
}

/** What is used of the rule's limits now, and whether this call would fit; counted when it is really made. */
async function limitsOf(station: Station, asked: ToolCall, rule: Rule) {
  const scope = {
    args: asked.args,
    agent: asked.agent.name,
    tool: asked.tool,
    saga: asked.saga ?? null,
    run: asked.fence?.run ?? null,
    now: Date.now(),
  };
  return Promise.all(
    spendsOf(rule, scope).map(async (spend) => {
      const used = await usedNow(station.db, spend);
      const code: ErrorCode = spend.kind === 'rate' ? 'rate_limited' : 'over_budget';
      return { spend, used, fits: used + spend.amount <= spend.max, code };
    }),
  );
}

/** What a repeat of this call is answered; of one still under way, if it stays so while the caller waits. */
function answerOf(call: Call): JsonObject {
  if (call.erasedAt !== null) return refusal('key_expired');
  if (call.problem !== null) return { ...refusal(call.problem), replayed: true };
  if (call.state === 'succeeded') return { status: 200, replayed: true, sends: false };
  if (call.state === 'held') return { status: 202, state: 'held', replayed: true, sends: false };
  return { ...refusal(call.state === 'in_doubt' ? 'in_doubt' : 'in_progress'), replayed: true };
}

/** What would be sent, without what the tool redacts. The real arguments are tried first: their faults are the caller's. */
function shownRequest(station: Station, asked: ToolCall, tool: Tool, txn: string): Json {
  const adapter = station.adapters.for(tool);
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

function refusal(code: ErrorCode): JsonObject {
  return { status: ERRORS[code].status, code, retry: ERRORS[code].retry, sends: false };
}
