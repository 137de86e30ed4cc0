import type { Continuation, Follower, Manner, Wish } from '../domain/adapter.ts';
import type { CallFace } from '../domain/call.ts';
import { canonical } from '../domain/canonical.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent, Policies, Tool } from '../domain/policy.ts';
import type { Fence } from '../domain/run.ts';
import { fingerprint as fingerprintOf } from '../domain/txn-id.ts';
import type { Result, Stint, Trace } from '../domain/watch.ts';
import { type CallScope, DEFAULT_HOLD, decide } from '../policy/decide.ts';
import { type Admitted, claimCall } from './claim-call.ts';
import type { Claims } from './claims.ts';
import type { Dispatch } from './dispatch.ts';
import { exposeAsker } from './exposure.ts';
import { type Facts, factsOf, factsShown } from './facts.ts';
import { guardsOf, shownOf } from './guards.ts';
import { continuationText, identifyCall } from './identify-call.ts';
import type { Caller } from './patience.ts';
import type { Recovery } from './recover.ts';
import { isDecision, orLogged, Refusal } from './refusal.ts';
import { refusalOf, refuseUndo, refuseWhatIsOff, reloaded, undecided } from './refuse.ts';
import {
  earlierCall,
  earlierUnderKey,
  noteHeard,
  noteKey,
  orUnrecorded,
  rememberedUnderItsKey,
  repeat,
  replay,
  tell,
} from './repeat-call.ts';
import type { Rollbacks } from './roll-back.ts';
import { refuseStrangeDependencies } from './sagas.ts';
import type { Sequencer } from './sequence.ts';
import type { Station } from './station.ts';
import type { OwnUndo } from './undo.ts';
import { goesUnrecorded, readUnrecorded } from './unrecorded.ts';
import { NO_VOTES, Outvoted, votesJson, votesOn } from './votes.ts';

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
  readonly caller?: Caller | undefined;
  /** What `args` was read from, a character a byte, where that is all that was read. */
  readonly body?: string | undefined;
}

export interface ToolAnswer {
  readonly call: CallFace;
  /** This caller did not start the call. */
  readonly repeat: boolean;
}

/** A call from its request to its answer, watched. */
export async function callTool(flow: Flow, asked: ToolCall): Promise<ToolAnswer> {
  const { agent, tool } = asked;
  const known = flow.station.policies().tools.has(tool) ? tool : 'unknown';
  const stint = flow.station.watch.begin('call', { tool: known, agent: agent.name }, asked.trace ?? {});
  try {
    const args = canonical(asked.args);
    const meant = { args, fingerprint: fingerprintOf(tool, args, continuationText(asked.continuation)) };
    const answer = await orLogged(flow.station, { agent: agent.name, tool }, () => walk(flow, asked, meant, stint));
    const exposing = exposeAsker(flow.station, asked, answer);
    if (exposing !== undefined) await orUnrecorded(answer.call.txn, answer.call.state, exposing);
    noteKey(flow.station, asked, meant.fingerprint, answer.call);
    stint.end(endOf(answer));
    return answer;
  } catch (error) {
    noteHeard(flow, asked, error);
    stint.end({ code: error instanceof GatewayError ? error.code : 'internal' });
    throw error;
  }
}

/** How a call ended, as it is watched. */
export function endOf({ call, repeat: replayed }: ToolAnswer): Result {
  const { txn, state, attempt: attempts, problem } = call;
  return problem === null ? { txn, state, attempts, replayed } : { txn, state, attempts, replayed, code: problem };
}

function placeOf({ saga, fence }: ToolCall): { readonly saga: string | null; readonly run: string | null } {
  return { saga: saga ?? null, run: fence?.run ?? null };
}

/** What is asked for: the canonical text of its arguments, and what tells it from any other wish. */
interface Meant {
  readonly args: string;
  readonly fingerprint: Buffer;
}

/** The way of a call: decide, identify, claim, send, settle, reply. `overtaken` is what the last claim found out, and how often. */
async function walk(
  flow: Flow,
  asked: ToolCall,
  meant: Meant,
  stint: Stint,
  overtaken?: { readonly facts: Facts; readonly times: number; readonly version: string },
): Promise<ToolAnswer> {
  const { station } = flow;
  const began = performance.now();
  const policies = station.policies();
  if (overtaken !== undefined && overtaken.version !== policies.version) throw reloaded();
  const { args, fingerprint } = meant;
  // What was done is told before anything is judged: whatever the rules say today, it does not become undone.
  const done = rememberedUnderItsKey(station, asked);
  if (done?.fingerprint.equals(fingerprint) === true) return replay(done, asked, fingerprint);
  const about = { tool: policies.tools.has(asked.tool) ? asked.tool : 'unknown', agent: asked.agent.name };
  const deciding = station.watch.begin('decide', about, stint);
  const place = placeOf(asked);
  const known = overtaken?.facts ?? factsOf(station, asked.agent, asked.tool, place);
  const facts = known instanceof Promise ? await known : known;
  const { saga, run } = place;
  const { history, tainted } = facts;
  const scope: CallScope = { args: asked.args, saga, run, now: Date.now(), history, tainted };
  const decision = decide(policies, asked.agent, asked.tool, scope);
  const tool = policies.tools.get(asked.tool);
  const refusal = refusalOf(decision, tool, asked, facts);
  const { allowed } = decision;
  deciding.end(decision.rule === undefined ? { allowed } : { allowed, rule: decision.rule.id });
  if (refusal !== undefined || tool === undefined || !decision.allowed) {
    return refuse(flow, asked, { tool, fingerprint, policies, refusal, facts, stint });
  }

  let admitted: Admitted;
  try {
    const agent = asked.agent.name;
    if (asked.undo !== undefined) await refuseUndo(station, policies, asked);
    const identifying = identifyCall(station, asked, tool, fingerprint);
    const identified = identifying instanceof Promise ? await identifying : identifying;
    const final = station.finals.get(identified.txn);
    if (final !== undefined) return replay(final, asked, fingerprint);
    if (identified.identity === 'shared') {
      const earlier = await earlierUnderKey(station, asked, identified.txn, fingerprint);
      if (earlier !== undefined) return repeat(flow, earlier.txn, fingerprint, asked, stint);
    }
    const request = station.adapters.for(tool).prepare(tool, wishOf(asked, args, stint), identified.txn);
    const { rule, poll } = decision;
    const hold = decision.hold ?? (identified.holdAsRepeat === true ? DEFAULT_HOLD : undefined);
    const heldMs = hold?.withinMs ?? rule.delayMs;
    refuseWhatIsOff(station, agent, tool, heldMs !== undefined);
    const judged = { asked, tool, policies, rule, decision, scope, hold, fingerprint, request, identified };
    let votes = NO_VOTES;
    if (poll !== undefined) {
      const shown = () => shownOf(judged, NO_VOTES);
      const cast = await votesOn(station, { txn: identified.txn, tool, rule, poll, policies, shown }, { agent, stint });
      if (cast === undefined) return repeat(flow, identified.txn, fingerprint, asked, stint);
      votes = cast;
    }
    const guards = guardsOf(station, judged, votes);
    admitted = {
      asked,
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
      stint,
    };
  } catch (error) {
    // No key or no request can be made of these arguments under today's contract, or the tool is switched off; what was
    // done before is told all the same.
    if (!(error instanceof GatewayError)) throw error;
    return refuse(flow, asked, { tool, fingerprint, policies, refusal: error, facts, stint });
  }
  if (goesUnrecorded(admitted)) return { call: await readUnrecorded(flow, admitted), repeat: false };
  const { txn } = admitted.identified;
  if (asked.dependsOn !== undefined) await refuseStrangeDependencies(station, asked);
  const claiming = station.watch.begin('claim', about, stint);
  let won: Awaited<ReturnType<typeof claimCall>>;
  try {
    won = await claimCall(flow, admitted);
  } finally {
    claiming.end();
  }
  // Whoever waited for a lock has that much less patience left.
  const patienceMs = Math.max(0, asked.patienceMs - (performance.now() - began));
  if (typeof won === 'object') {
    const times = (overtaken?.times ?? 0) + 1;
    if (times >= MOST_DECISIONS) throw undecided(txn);
    return walk(flow, { ...asked, patienceMs }, meant, stint, {
      facts: { ...facts, history: won.past },
      times,
      version: policies.version,
    });
  }
  // Nobody waits for a delay that is longer than their patience.
  const isFar = won && admitted.hold === undefined && (admitted.heldMs ?? 0) > patienceMs;
  if (!won) return repeat(flow, txn, fingerprint, { ...asked, patienceMs }, stint);
  const { agent, caller } = asked;
  const asker = { tool: asked.tool, agent, caller, patienceMs: isFar ? 0 : patienceMs };
  return await tell(flow, { txn, fingerprint }, asker, false, stint);
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
  if (!isDecision(error)) throw error;
  throw new Refusal(error, {
    policy: policies.version,
    reason: error.message,
    ...factsShown(facts),
    ...(error instanceof Outvoted ? { votes: votesJson(error.votes) } : {}),
  });
}

function wishOf({ args, agent, follower, continuation }: ToolCall, canonicalArgs: string, { trace }: Stint): Wish {
  const manner = follower === undefined ? undefined : mannerOf(follower);
  return { args, canonicalArgs, agent: agent.name, manner, trace, continuation };
}

/** What of the MCP client that asks shows in the request. */
function mannerOf({ era, capabilities, meta }: Follower): Manner {
  return { era, capabilities, meta };
}
