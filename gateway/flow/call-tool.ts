import { randomInt } from 'node:crypto';
import type { Continuation, Follower, PreparedRequest, Wish } from '../domain/adapter.ts';
import { auditEntry } from '../domain/audit.ts';
import { type Call, type CallFace, face } from '../domain/call.ts';
import { canonical } from '../domain/canonical.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent, Approve, Policies, Rule, Tool } from '../domain/policy.ts';
import type { Fence } from '../domain/run.ts';
import { isFinal } from '../domain/states.ts';
import { fingerprint as fingerprintOf } from '../domain/txn-id.ts';
import type { Vote } from '../domain/vote.ts';
import type { Stint, Trace } from '../domain/watch.ts';
import { logEntry } from '../ledger/audit-queue.ts';
import type { Guards, Intent, Overtaken } from '../ledger/calls.ts';
import { type CallScope, DEFAULT_HOLD, decide } from '../policy/decide.ts';
import { awaitCall, released } from './await-call.ts';
import type { Claims } from './claims.ts';
import type { Dispatch } from './dispatch.ts';
import { exposeAsker } from './exposure.ts';
import { type Facts, factsOf, factsShown } from './facts.ts';
import type { Final } from './finals.ts';
import { guardsOf, shownOf } from './guards.ts';
import { type Identified, identifyCall } from './identify-call.ts';
import { freshJob } from './job.ts';
import { aliasOf, join, meantBy, toldToJoiner, tookPart } from './join.ts';
import { isLocked, whenUnlocked } from './locking.ts';
import type { Caller } from './patience.ts';
import { store } from './payload.ts';
import type { Recovery } from './recover.ts';
import {
  overLimit,
  refusalOf,
  refuseAnother,
  refuseLocked,
  refuseUndo,
  refuseUnlessInForce,
  refuseWhatIsOff,
  undecided,
} from './refuse.ts';
import type { Rollbacks } from './roll-back.ts';
import { refuseFenced } from './runs.ts';
import { refuseClosed, refuseStrangeDependencies } from './sagas.ts';
import type { Sequencer } from './sequence.ts';
import { exceeded } from './spending.ts';
import type { Station } from './station.ts';
import { type OwnUndo, storedUndo } from './undo.ts';
import { goesUnrecorded, readUnrecorded } from './unrecorded.ts';
import { Outvoted, votesJson, votesOn } from './votes.ts';

/** A decision that what the agent does beside it changes this often is given up. */
const MOST_DECISIONS = 5;

/** The station with what moves calls along it. */
export interface Flow {
  readonly station: Station;
  readonly dispatch: Dispatch;
  readonly claims: Claims;
  readonly recovery: Recovery;
  readonly rollbacks: Rollbacks;
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
  readonly fence?: Fence | undefined;
  /** An undo that is known only now. */
  readonly undo?: OwnUndo | undefined;
  /** What an earlier answer of an MCP tool asked for: another request, though the arguments are the same. */
  readonly continuation?: Continuation | undefined;
  /** An MCP client that hears what happens while the call runs. Of a repeat only the first one's does. */
  readonly follower?: Follower | undefined;
  /** What the caller's own work is part of. */
  readonly trace?: Trace | undefined;
  /** How long the caller waits for a held or running call. */
  readonly patienceMs: number;
  /** The caller hung up. Ends the waiting, never the call. */
  readonly caller?: Caller;
}

export interface ToolAnswer {
  readonly call: CallFace;
  /** This caller did not start the call. */
  readonly repeat: boolean;
}

/** A call that passed judgement: who asks for what, under which contract and rule. */
interface Admitted {
  readonly asked: ToolCall;
  readonly tool: Tool;
  readonly policies: Policies;
  readonly rule: Rule;
  readonly hold: Approve | undefined;
  /** How long it is held at most: for people, or because its rule delays it. Undefined: it is sent now. */
  readonly heldMs: number | undefined;
  readonly votes: readonly Vote[];
  readonly args: string;
  readonly fingerprint: Buffer;
  readonly identified: Identified;
  readonly request: PreparedRequest;
  readonly guards: Guards | undefined;
  readonly stint: Stint;
}

/** A call from its request to its answer, watched. */
export async function callTool(flow: Flow, asked: ToolCall): Promise<ToolAnswer> {
  const { agent, tool } = asked;
  const known = flow.station.policies().tools.has(tool) ? tool : 'unknown';
  const stint = flow.station.watch.begin('call', { tool: known, agent: agent.name }, asked.trace ?? {});
  try {
    const answer = await walk(flow, asked, stint);
    await exposeAsker(flow.station, asked, answer);
    const { txn, state, attempt, problem } = answer.call;
    stint.end({
      txn,
      state,
      attempts: attempt,
      replayed: answer.repeat,
      ...(problem === null ? {} : { code: problem }),
    });
    return answer;
  } catch (error) {
    stint.end({ code: error instanceof GatewayError ? error.code : 'internal' });
    throw error;
  }
}

function placeOf({ saga, fence }: ToolCall): { readonly saga: string | null; readonly run: string | null } {
  return { saga: saga ?? null, run: fence?.run ?? null };
}

/** The way of a call: decide, identify, claim, send, settle, reply. `overtaken` is what the last claim found out, and how often. */
async function walk(
  flow: Flow,
  asked: ToolCall,
  stint: Stint,
  overtaken?: { readonly facts: Facts; readonly times: number },
): Promise<ToolAnswer> {
  const { station } = flow;
  const began = performance.now();
  const policies = station.policies();
  const args = canonical(asked.args);
  const fingerprint = fingerprintOf(asked.tool, args, continuationText(asked.continuation));
  // What was done is told before anything is judged: whatever the rules say today, it does not become undone.
  const done = rememberedUnderItsKey(station, asked);
  if (done !== undefined) return replay(done, asked, fingerprint);
  const about = { tool: policies.tools.has(asked.tool) ? asked.tool : 'unknown', agent: asked.agent.name };
  const deciding = station.watch.begin('decide', about, stint);
  const facts = overtaken?.facts ?? (await factsOf(station, asked.agent, asked.tool, placeOf(asked)));
  const scope: CallScope = { args: asked.args, ...placeOf(asked), now: Date.now(), ...facts };
  const decision = decide(policies, asked.agent, asked.tool, scope);
  const tool = policies.tools.get(asked.tool);
  const refusal = refusalOf(decision, tool, asked, facts);
  deciding.end({ allowed: decision.allowed, ...(decision.rule === undefined ? {} : { rule: decision.rule.id }) });
  if (refusal !== undefined || tool === undefined || !decision.allowed) {
    return refuse(flow, asked, { tool, fingerprint, policies, refusal, facts, stint });
  }

  let admitted: Admitted;
  try {
    const agent = asked.agent.name;
    await refuseUndo(station, policies, asked);
    const identified = await identifyCall(station, asked, tool, fingerprint);
    const known = station.finals.get(identified.txn);
    if (known !== undefined) return replay(known, asked, fingerprint);
    const request = station.adapters
      .for(tool)
      .prepare(
        tool,
        { args: asked.args, agent, canonicalArgs: args, trace: stint.trace, ...continued(asked) },
        identified.txn,
      );
    const { rule, poll } = decision;
    const hold = decision.hold ?? (identified.holdAsRepeat === true ? DEFAULT_HOLD : undefined);
    const heldMs = hold?.withinMs ?? rule.delayMs;
    refuseWhatIsOff(station, agent, tool, heldMs !== undefined);
    const judged = { asked, tool, policies, rule, scope, fingerprint, request };
    const motion = { txn: identified.txn, tool, rule, poll, policies, shown: () => shownOf({ ...judged, votes: [] }) };
    const votes = await votesOn(station, motion, { agent, stint });
    if (votes === undefined) return repeat(flow, identified.txn, fingerprint, asked, stint);
    const guards = guardsOf(station, { ...judged, decision, hold, identified, votes });
    admitted = { ...judged, hold, heldMs, votes, args, identified, guards, stint };
  } catch (error) {
    // No key or no request can be made of these arguments under today's contract, or the tool is switched off; what was
    // done before is told all the same.
    if (!(error instanceof GatewayError)) throw error;
    return refuse(flow, asked, { tool, fingerprint, policies, refusal: error, facts, stint });
  }
  if (goesUnrecorded(admitted)) return { call: await readUnrecorded(flow, admitted), repeat: false };
  const { txn } = admitted.identified;
  await refuseStrangeDependencies(station, asked);
  const claiming = station.watch.begin('claim', about, stint);
  const won = await claim(flow, admitted).finally(() => claiming.end());
  // Whoever waited for a lock has that much less patience left.
  const patienceMs = Math.max(0, asked.patienceMs - (performance.now() - began));
  if (typeof won === 'object') {
    const times = (overtaken?.times ?? 0) + 1;
    if (times >= MOST_DECISIONS) throw undecided(txn);
    return walk(flow, { ...asked, patienceMs }, stint, { facts: { ...facts, history: won.past }, times });
  }
  // Nobody waits for a delay that is longer than their patience.
  const isFar = won && admitted.hold === undefined && (admitted.heldMs ?? 0) > patienceMs;
  const left = { ...asked, patienceMs: isFar ? 0 : patienceMs };
  return won ? tell(flow, txn, left, false, stint) : repeat(flow, txn, fingerprint, left, stint);
}

/** A refusal binds nothing. But what was done before under the same key is still told: it does not become undone. */
async function refuse(
  flow: Flow,
  asked: ToolCall,
  why: {
    readonly tool: Tool | undefined;
    readonly fingerprint: Buffer;
    readonly policies: Policies;
    readonly refusal: GatewayError | undefined;
    readonly facts: Facts;
    readonly stint: Stint;
  },
): Promise<ToolAnswer> {
  const { station } = flow;
  const { tool, fingerprint, policies, refusal, facts, stint } = why;
  const earlier = await earlierCall(station, asked, tool, fingerprint);
  if (earlier !== undefined) return repeat(flow, earlier.txn, fingerprint, asked, stint);
  const error = refusal ?? new GatewayError('unknown_tool', `There is no tool ${asked.tool}.`);
  if (error.code === 'denied' || error.code === 'unknown_tool') {
    const entry = auditEntry(error.code, {
      agent: asked.agent.name,
      tool: asked.tool,
      policy: policies.version,
      reason: error.message,
      ...factsShown(facts),
      ...(error instanceof Outvoted ? { votes: votesJson(error.votes) } : {}),
    });
    await logEntry(station.db, entry);
  }
  throw error;
}

/**
 * The same request made before, by this agent or joined by it. Without a tool, because it is no longer declared, only a key
 * still finds it.
 */
export async function earlierCall(
  station: Station,
  asked: ToolCall,
  tool: Tool | undefined,
  fingerprint: Buffer,
): Promise<Call | undefined> {
  const agent = asked.agent.name;
  if (tool === undefined && asked.key === undefined) return undefined;
  try {
    const txn =
      tool === undefined
        ? aliasOf(station, agent, asked.key ?? '')
        : (await identifyCall(station, asked, tool, fingerprint)).txn;
    const call = (await station.calls.read(txn)) ?? (asked.key === undefined ? undefined : await meantBy(station, txn));
    if (call === undefined || !call.fingerprint.equals(fingerprint)) return undefined;
    return (await tookPart(station, call, agent)) ? call : undefined;
  } catch (error) {
    if (error instanceof GatewayError) return undefined;
    throw error;
  }
}

/**
 * T1. A crash before it leaves nothing; a crash after it leaves a call in `sending` whose owner is gone, which means
 * unknown although nothing may have left.
 */
async function claim({ station, dispatch, claims }: Flow, admitted: Admitted): Promise<boolean | Overtaken> {
  const { asked, tool, identified } = admitted;
  const { txn } = identified;
  if (dispatch.carried(txn) !== undefined) return false;
  const owner = station.lease.id;
  const payload = { args: asked.args, request: admitted.request };
  const held = admitted.heldMs !== undefined;
  const kind = tool.effect === 'read' ? 'read' : tool.once.by;
  const keyLifetimeMs = tool.once.by === 'key' ? tool.once.lifetimeMs : null;
  const state = held ? 'held' : tool.observe === undefined ? 'sending' : 'ready';
  const intent: Intent = {
    txn,
    agent: asked.agent.name,
    tool: tool.name,
    key: identified.key,
    identity: identified.identity,
    fingerprint: admitted.fingerprint,
    kind,
    fence: randomInt(1, 1_000_000_000),
    state,
    owner: held ? null : owner,
    dueInMs: admitted.heldMs ?? null,
    keyLifetimeMs,
    policyVersion: admitted.policies.version,
    rule: admitted.rule.id,
    ...store(station.sealingKey, txn, tool, payload, admitted.args),
    saga: asked.saga ?? null,
    dependsOn: asked.dependsOn ?? null,
    run: asked.fence?.run ?? null,
    epoch: asked.fence?.epoch ?? null,
    undo: tool.effect === 'read' ? null : storedUndo(station, txn, tool, asked.undo),
    undoes: null,
    entry: auditEntry(held ? 'call_held' : 'call_claimed', {
      txn,
      agent: asked.agent.name,
      tool: tool.name,
      fingerprint: admitted.fingerprint.toString('hex'),
      policy: admitted.policies.version,
      rule: admitted.rule.id,
      ...(asked.saga === undefined ? {} : { saga: asked.saga }),
      ...asked.fence,
      ...(admitted.votes.length === 0 ? {} : { votes: votesJson(admitted.votes) }),
    }),
  };
  refuseUnlessInForce(station, owner);
  station.reach('claiming');
  await identified.announce?.();
  const attempt = () => {
    // Asked again each time: while something was locked, this process may have lost its name.
    refuseUnlessInForce(station, owner);
    return claims.claim(intent, admitted.guards, (lockToken) => {
      if (held) return;
      station.reach('claimed');
      const { follower } = asked;
      void dispatch.carry(freshJob(intent, tool, owner, payload, { lockToken, follower, stint: admitted.stint }));
    });
  };
  const claimed = await whenUnlocked(attempt, asked.patienceMs, asked.caller, dispatch.stopping);
  if (typeof claimed === 'object' && 'past' in claimed) return claimed;
  if (isLocked(claimed)) throw await refuseLocked(station, admitted, claimed);
  if (typeof claimed === 'object') throw await overLimit(station, admitted, exceeded(claimed, admitted.rule.id));
  if (claimed === 'won') station.taints.add(admitted.guards?.exposure?.scopes ?? []);
  return claimed === 'won';
}

/** What a request to an MCP server holds beside the arguments. */
function continued({ continuation, follower }: ToolCall): Pick<Wish, 'continuation' | 'manner'> {
  const { era = 'modern', capabilities = {}, meta = {} } = follower ?? {};
  return {
    ...(continuation === undefined ? {} : { continuation }),
    ...(follower === undefined ? {} : { manner: { era, capabilities, meta } }),
  };
}

function continuationText(continuation: Continuation | undefined): string {
  if (continuation === undefined) return '';
  const { inputResponses = null, requestState = null } = continuation;
  return canonical({ inputResponses, requestState });
}

/** A call that was there before: another request, an answer to replay, or one to wait for. */
async function repeat(
  flow: Flow,
  txn: string,
  fingerprint: Buffer,
  asked: ToolCall,
  stint: Stint,
): Promise<ToolAnswer> {
  const asOf = flow.station.finals.asOf();
  const call = (await flow.station.calls.read(txn)) ?? (await meantBy(flow.station, txn));
  if (call === undefined && asked.fence !== undefined) await refuseFenced(flow.station, asked.fence, asked.agent.name);
  if (call === undefined && asked.saga !== undefined) await refuseClosed(flow.station, asked.saga, asked.agent.name);
  if (call === undefined) throw released(txn, 'unavailable', 'the earlier call was given up before it was sent');
  refuseAnother(call, call.fingerprint, asked, fingerprint);
  if (call.erasedAt !== null) {
    throw new GatewayError(
      'key_expired',
      'This key is past its retention: what was answered is gone, and it is never executed anew.',
      { txn: call.txn },
    );
  }
  await join(flow.station, call, asked);
  if (call.agent !== asked.agent.name) return toldToJoiner(call.txn, tell(flow, call.txn, asked, true, stint));
  if (isFinal(call.state) && call.settledAt !== null) {
    const told = face(call);
    flow.station.finals.keep(told, call.fingerprint, call.readAt.getTime() - call.settledAt.getTime(), asOf);
    return { call: told, repeat: true };
  }
  return tell(flow, call.txn, asked, true, stint);
}

function rememberedUnderItsKey(station: Station, { agent, key }: ToolCall): Final | undefined {
  return key === undefined ? undefined : station.finals.get(aliasOf(station, agent.name, key));
}

/** Answered a moment ago by this process: told again without asking the ledger. */
function replay({ face: call, fingerprint: first }: Final, asked: ToolCall, fingerprint: Buffer): ToolAnswer {
  refuseAnother(call, first, asked, fingerprint);
  return { call, repeat: true };
}

async function tell(
  { station, dispatch }: Flow,
  txn: string,
  asked: ToolCall,
  isRepeat: boolean,
  stint: Stint,
): Promise<ToolAnswer> {
  const about = { tool: asked.tool, agent: asked.agent.name, txn };
  const waiting = isRepeat ? station.watch.begin('wait', about, stint) : undefined;
  const call = await awaitCall(station, dispatch, txn, asked.patienceMs, asked.caller).finally(() => waiting?.end());
  if (call === undefined) throw released(txn, 'unavailable', 'it was given up before it was sent');
  return { call, repeat: isRepeat };
}
