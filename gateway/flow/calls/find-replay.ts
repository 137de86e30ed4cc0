import type { CallRecord } from '../../domain/calls/call-record.ts';
import { isFinalState } from '../../domain/calls/call-state.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Agent, Tool } from '../../domain/policy.ts';
import type { SpanResult, TraceContext } from '../../domain/telemetry.ts';
import type { Context } from '../context.ts';
import { refuseStaleEpoch } from '../controls/runs.ts';
import { isUntrusted } from '../controls/taint.ts';
import { refuseClosedSaga } from '../sagas/sagas.ts';
import { awaitResult, toInDoubtError } from './await-result.ts';
import type { ParsedCall, Services, ToolAnswer, ToolCall } from './execute-call.ts';
import { type IdentifiedCall, identifyCall } from './identify-call.ts';
import { type DeliveredCall, markDelivered } from './own-calls.ts';
import { buildReleasedError, refuseKeyReuse } from './refusals.ts';
import type { CachedAnswer } from './replay-cache.ts';
import { deriveKeyAlias, isParticipant, joinSharedCall, redactForJoiner, resolveAlias } from './shared-keys.ts';

// The one place that answers whether a request was made before. `findReplayByBody` asks before the arguments are parsed,
// `findReplay` at every later point.

/** The points at which a call asks whether it was made before. Each knows more of the call than the one before it. */
type ReplayLookup =
  /** The rules have not decided yet. Looks only in memory, by the caller's key: a first call must not cost a query. */
  | { readonly after: 'parse' }
  /**
   * The txn is known. Looks in memory; also in the ledger if the caller's own key may name an older call than its shared key,
   * or if voters would be asked, because a call is voted on once.
   */
  | { readonly after: 'identify'; readonly identified: IdentifiedCall; readonly hasVoters: boolean }
  /** The call is refused, which cannot undo an earlier one. Looks in the ledger for an equal request of this agent. */
  | { readonly after: 'refusal'; readonly tool: Tool | undefined }
  /** The ledger has a call of this txn already. It is answered in any case, if only by a refusal of this request. */
  | { readonly after: 'lost_claim'; readonly txn: string };

/**
 * Answers a request that was made before: replays a final answer, waits for an open call, or refuses another request with the
 * same key. Returns undefined if the request is new. Returns a promise only where it must ask the ledger.
 */
export function findReplay(
  services: Services,
  call: ParsedCall,
  lookup: Extract<ReplayLookup, { after: 'parse' }>,
): ToolAnswer | undefined;
export function findReplay(
  services: Services,
  call: ParsedCall,
  lookup: Extract<ReplayLookup, { after: 'identify' }>,
): ToolAnswer | undefined | Promise<ToolAnswer | undefined>;
export function findReplay(
  services: Services,
  call: ParsedCall,
  lookup: Extract<ReplayLookup, { after: 'refusal' }>,
): Promise<ToolAnswer | undefined>;
export function findReplay(
  services: Services,
  call: ParsedCall,
  lookup: Extract<ReplayLookup, { after: 'lost_claim' }>,
): Promise<ToolAnswer>;
export function findReplay(
  services: Services,
  call: ParsedCall,
  lookup: ReplayLookup,
): ToolAnswer | undefined | Promise<ToolAnswer | undefined> {
  switch (lookup.after) {
    case 'parse':
      return findByKeyInMemory(services.ctx, call);
    case 'identify':
      return findByTxn(services, call, lookup.identified, lookup.hasVoters);
    case 'refusal':
      return findAfterRefusal(services, call, lookup.tool);
    case 'lost_claim':
      return answerRepeat(services, call, lookup.txn);
  }
}

/** A call before its arguments are parsed. */
interface UnparsedCall {
  readonly agent: Agent;
  readonly tool: string;
  readonly key: string | undefined;
  readonly saga: string | undefined;
  readonly trace: TraceContext;
  /** The request body, one character per byte. */
  readonly body: string | undefined;
}

/**
 * Finds a cached answer to a byte-identical request with the same key, without parsing its arguments. Returns undefined if
 * the call must be executed normally.
 */
export function findReplayByBody(
  { ctx }: Services,
  { agent, tool, key, saga, trace, body }: UnparsedCall,
): ToolAnswer | undefined {
  if (key === undefined || body === undefined) return undefined;
  const cached = ctx.replayCache.getByBody(body, agent.name, key, tool);
  if (cached === undefined || (saga !== undefined && cached.call.saga !== saga)) return undefined;
  const policies = ctx.policies();
  const declared = policies.tools.get(tool);
  // An agent is tainted before it gets untrusted text, and the ledger must record that first.
  if (declared !== undefined && isUntrusted(policies, declared)) return undefined;
  const subject = { tool: declared === undefined ? 'unknown' : tool, agent: agent.name };
  const answer = { call: cached.call, repeat: true };
  ctx.telemetry.begin('call', subject, trace).end(toSpanResult(answer));
  return answer;
}

/** The result that the span of a call records. */
export function toSpanResult({ call, repeat: replayed }: ToolAnswer): SpanResult {
  const { txn, state, attempt: attempts, problem } = call;
  return problem === null ? { txn, state, attempts, replayed } : { txn, state, attempts, replayed, code: problem };
}

/** An answer of another request with this key is ignored here: the rules decide first whether the caller learns of it. */
function findByKeyInMemory({ replayCache }: Context, call: ParsedCall): ToolAnswer | undefined {
  const { agent, key } = call.toolCall;
  const cached = key === undefined ? undefined : replayCache.getByKey(agent.name, key);
  return cached?.fingerprint.equals(call.fingerprint) === true ? replayCached(cached, call) : undefined;
}

function findByTxn(
  services: Services,
  call: ParsedCall,
  identified: IdentifiedCall,
  hasVoters: boolean,
): ToolAnswer | undefined | Promise<ToolAnswer | undefined> {
  const cached = services.ctx.replayCache.get(identified.txn);
  if (cached !== undefined) return replayCached(cached, call);
  const hasTwoKeys = identified.identity === 'shared' && call.toolCall.key !== undefined;
  return hasTwoKeys || hasVoters ? findBeforeClaim(services, call, identified, hasVoters) : undefined;
}

async function findBeforeClaim(
  services: Services,
  call: ParsedCall,
  { txn, identity }: IdentifiedCall,
  hasVoters: boolean,
): Promise<ToolAnswer | undefined> {
  const { ctx } = services;
  const own = identity === 'shared' ? await findCallOfOwnKey(ctx, call) : undefined;
  if (own !== undefined && own.txn !== txn) return answerRepeat(services, call, own.txn);
  if (!hasVoters) return undefined;
  // A shared call was decided by the voters of its first agent. An agent that joins later has its own voters.
  const voted = await ctx.calls.read(txn);
  const isRepeat = voted !== undefined && (await isParticipant(ctx, voted, call.toolCall.agent.name));
  return isRepeat ? answerRepeat(services, call, txn) : undefined;
}

/**
 * Finds an earlier call of the same request under the caller's own key. Beside a shared key such a call exists if the tool had
 * another shared key, or none, when it was made.
 */
async function findCallOfOwnKey(ctx: Context, { toolCall, fingerprint }: ParsedCall): Promise<CallRecord | undefined> {
  const { agent, key } = toolCall;
  if (key === undefined) return undefined;
  const alias = deriveKeyAlias(ctx, agent.name, key);
  const call = (await ctx.calls.read(alias)) ?? (await resolveAlias(ctx, alias));
  if (call === undefined || !call.fingerprint.equals(fingerprint)) return undefined;
  return (await isParticipant(ctx, call, agent.name)) ? call : undefined;
}

async function findAfterRefusal(
  services: Services,
  call: ParsedCall,
  tool: Tool | undefined,
): Promise<ToolAnswer | undefined> {
  const { ctx } = services;
  const earlier =
    (await findEarlierCall(ctx, call.toolCall, tool, call.fingerprint)) ?? (await findCallOfOwnKey(ctx, call));
  return earlier === undefined ? undefined : answerRepeat(services, call, earlier.txn);
}

/**
 * Finds an earlier call of the same request that this agent made or joined. If the tool is no longer declared (undefined),
 * only an idempotency key finds it.
 */
export async function findEarlierCall(
  ctx: Context,
  toolCall: ToolCall,
  tool: Tool | undefined,
  fingerprint: Buffer,
): Promise<CallRecord | undefined> {
  const agent = toolCall.agent.name;
  if (tool === undefined && toolCall.key === undefined) return undefined;
  try {
    const txn =
      tool === undefined
        ? deriveKeyAlias(ctx, agent, toolCall.key ?? '')
        : (await identifyCall(ctx, toolCall, tool, fingerprint)).txn;
    const call = (await ctx.calls.read(txn)) ?? (toolCall.key === undefined ? undefined : await resolveAlias(ctx, txn));
    if (call === undefined || !call.fingerprint.equals(fingerprint)) return undefined;
    return (await isParticipant(ctx, call, agent)) ? call : undefined;
  } catch (error) {
    if (error instanceof GatewayError) return undefined;
    throw error;
  }
}

/** If the ledger cannot be read, the answer is `in_doubt`, because the call may have been sent. */
async function answerRepeat(services: Services, call: ParsedCall, txn: string): Promise<ToolAnswer> {
  try {
    return await readAndAnswerRepeat(services, call, txn);
  } catch (error) {
    throw toInDoubtError(txn, undefined, error);
  }
}

async function readAndAnswerRepeat(services: Services, call: ParsedCall, txn: string): Promise<ToolAnswer> {
  const { ctx } = services;
  const { toolCall } = call;
  const version = ctx.replayCache.readVersion();
  const earlier = (await ctx.calls.read(txn)) ?? (await resolveAlias(ctx, txn));
  if (earlier === undefined) return refuseUnclaimed(ctx, toolCall, txn);
  refuseKeyReuse(earlier, earlier.fingerprint, call);
  if (earlier.erasedAt !== null) throw new AnswerErasedError(earlier);
  await joinSharedCall(ctx, earlier, toolCall);
  if (earlier.agent !== toolCall.agent.name)
    return redactForJoiner(earlier.txn, awaitRepeat(services, call, earlier.txn));
  if (!isFinalState(earlier.state) || earlier.settledAt === null) return awaitRepeat(services, call, earlier.txn);
  const ageMs = earlier.readAt.getTime() - earlier.settledAt.getTime();
  ctx.replayCache.add(earlier, earlier.fingerprint, ageMs, version);
  return { call: earlier, repeat: true };
}

/** The claim was lost, but there is no call: a run or saga refused it, or the winner was released meanwhile. */
async function refuseUnclaimed(ctx: Context, { agent, runEpoch, saga }: ToolCall, txn: string): Promise<never> {
  if (runEpoch !== undefined) await refuseStaleEpoch(ctx, runEpoch, agent.name);
  if (saga !== undefined) await refuseClosedSaga(ctx, saga, agent.name);
  throw buildReleasedError(txn, 'unavailable', 'the earlier call was released before it was sent');
}

async function awaitRepeat(services: Services, call: ParsedCall, txn: string): Promise<ToolAnswer> {
  const { agent, tool } = call.toolCall;
  const waitSpan = services.ctx.telemetry.begin('wait', { tool, agent: agent.name, txn }, call.span);
  try {
    return { call: await awaitResult(services, call, txn), repeat: true };
  } finally {
    waitSpan.end();
  }
}

/** Replays a cached answer without reading the ledger. */
function replayCached({ call: earlier, fingerprint }: CachedAnswer, call: ParsedCall): ToolAnswer {
  refuseKeyReuse(earlier, fingerprint, call);
  return { call: earlier, repeat: true };
}

/** Makes a cached answer findable by the caller's key and by the request body. */
export function indexCachedAnswer(
  ctx: Context,
  { toolCall, fingerprint }: ParsedCall,
  { txn, identity }: CallRecord,
): void {
  const { agent, key } = toolCall;
  if (key === undefined || identity !== 'key') return;
  const isRedacting = ctx.policies().tools.get(toolCall.tool)?.redact.length !== 0;
  ctx.replayCache.addKey(txn, fingerprint, { agent: agent.name, key, body: isRedacting ? undefined : toolCall.body });
}

/** The answer of the call was erased after its retention. */
class AnswerErasedError extends GatewayError {
  readonly call: DeliveredCall;

  constructor(call: DeliveredCall & Pick<CallRecord, 'state'>) {
    const text =
      call.identity === 'repeat'
        ? 'An identical call was made before, and its answer is past its retention. To execute it again, use an idempotency key.'
        : 'This key is past its retention: its answer is erased, and the call is never executed again. Use a new key.';
    super('key_expired', text, { txn: call.txn, state: call.state });
    this.call = call;
  }
}

/**
 * Records that the answer `key_expired` was delivered for a call without a key. The next identical request is then a new call;
 * without this record it would get `key_expired` for ever. Runs after the refusal is logged. Does nothing if the caller hung up.
 */
export function markErasureDelivered(services: Services, { cancelToken }: ToolCall, error: unknown): void {
  if (error instanceof AnswerErasedError && cancelToken?.isCancelled !== true) markDelivered(services, error.call);
}
