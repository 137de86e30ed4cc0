import { type Call, type CallSummary, summarizeCall } from '../../domain/calls/call.ts';
import { type CallState, isFinalState } from '../../domain/calls/call-state.ts';
import { GatewayError, LedgerError } from '../../domain/errors.ts';
import type { Tool } from '../../domain/policy.ts';
import type { Span } from '../../domain/telemetry.ts';
import type { Context } from '../context.ts';
import { refuseStaleEpoch } from '../controls/runs.ts';
import { refuseClosedSaga } from '../sagas/sagas.ts';
import { awaitCall, buildReleasedError, buildUnrecordedError } from './await-call.ts';
import type { Services, ToolAnswer, ToolCall } from './execute-call.ts';
import { identifyCall } from './identify-call.ts';
import { type DeliveredCall, markDelivered } from './own-calls.ts';
import { refuseKeyReuse } from './refuse.ts';
import type { CachedAnswer } from './replay-cache.ts';
import { deriveKeyAlias, isParticipant, joinSharedCall, redactForJoiner, resolveAlias } from './shared-keys.ts';

/**
 * Finds an earlier call of the same request that this agent made or joined. If the tool is no longer declared (undefined),
 * only an idempotency key finds it.
 */
export async function findEarlierCall(
  ctx: Context,
  toolCall: ToolCall,
  tool: Tool | undefined,
  fingerprint: Buffer,
): Promise<Call | undefined> {
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

/**
 * Answers a request whose txn exists already: refuses another request with the same key, replays a final answer, or waits.
 * If the ledger cannot be read, the answer is `in_doubt`, because the call may have been sent.
 */
export function answerRepeat(
  services: Services,
  txn: string,
  fingerprint: Buffer,
  toolCall: ToolCall,
  span: Span,
): Promise<ToolAnswer> {
  return mapLedgerErrorToInDoubt(txn, undefined, readAndAnswerRepeat(services, txn, fingerprint, toolCall, span));
}

/** Turns a ledger failure into `in_doubt`, for a call that may have been sent. */
export function mapLedgerErrorToInDoubt<T>(txn: string, state: CallState | undefined, work: Promise<T>): Promise<T> {
  return work.catch((error: unknown) => {
    throw error instanceof LedgerError ? buildUnrecordedError(txn, state) : error;
  });
}

async function readAndAnswerRepeat(
  services: Services,
  txn: string,
  fingerprint: Buffer,
  toolCall: ToolCall,
  span: Span,
): Promise<ToolAnswer> {
  const version = services.ctx.replayCache.readVersion();
  const call = (await services.ctx.calls.read(txn)) ?? (await resolveAlias(services.ctx, txn));
  if (call === undefined && toolCall.runEpoch !== undefined)
    await refuseStaleEpoch(services.ctx, toolCall.runEpoch, toolCall.agent.name);
  if (call === undefined && toolCall.saga !== undefined)
    await refuseClosedSaga(services.ctx, toolCall.saga, toolCall.agent.name);
  if (call === undefined)
    throw buildReleasedError(txn, 'unavailable', 'the earlier call was released before it was sent');
  refuseKeyReuse(call, call.fingerprint, toolCall, fingerprint);
  if (call.erasedAt !== null) throw new AnswerErasedError(call);
  await joinSharedCall(services.ctx, call, toolCall);
  if (call.agent !== toolCall.agent.name)
    return redactForJoiner(call.txn, awaitResult(services, call, toolCall, true, span));
  if (isFinalState(call.state) && call.settledAt !== null) {
    const summary = summarizeCall(call);
    services.ctx.replayCache.add(summary, call.fingerprint, call.readAt.getTime() - call.settledAt.getTime(), version);
    return { call: summary, repeat: true };
  }
  return awaitResult(services, call, toolCall, true, span);
}

/** The answer of the call was erased after its retention. */
class AnswerErasedError extends GatewayError {
  readonly call: DeliveredCall;

  constructor(call: DeliveredCall & Pick<Call, 'state'>) {
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

/**
 * Finds an earlier call of the same request under the caller's own key. Such a call exists if the tool had another shared key,
 * or none, when it was made.
 */
export async function findEarlierCallByKey(
  ctx: Context,
  { agent, key }: ToolCall,
  txn: string,
  fingerprint: Buffer,
): Promise<Call | undefined> {
  if (key === undefined) return undefined;
  const alias = deriveKeyAlias(ctx, agent.name, key);
  const call = (await ctx.calls.read(alias)) ?? (await resolveAlias(ctx, alias));
  if (call === undefined || call.txn === txn || !call.fingerprint.equals(fingerprint)) return undefined;
  return (await isParticipant(ctx, call, agent.name)) ? call : undefined;
}

/** Finds the cached answer for the caller's key. */
export function findCachedByKey(ctx: Context, { agent, key }: ToolCall): CachedAnswer | undefined {
  return key === undefined ? undefined : ctx.replayCache.getByKey(agent.name, key);
}

/** Makes a cached answer findable by the caller's key and by the request body. */
export function indexCachedAnswer(
  ctx: Context,
  toolCall: ToolCall,
  fingerprint: Buffer,
  { txn, identity }: CallSummary,
): void {
  const { agent, key } = toolCall;
  if (key === undefined || identity !== 'key') return;
  const isRedacting = ctx.policies().tools.get(toolCall.tool)?.redact.length !== 0;
  ctx.replayCache.addKey(txn, fingerprint, { agent: agent.name, key, body: isRedacting ? undefined : toolCall.body });
}

/** Replays a cached answer without reading the ledger. */
export function replayCached(
  { call, fingerprint: callFingerprint }: CachedAnswer,
  toolCall: ToolCall,
  fingerprint: Buffer,
): ToolAnswer {
  refuseKeyReuse(call, callFingerprint, toolCall, fingerprint);
  return { call, repeat: true };
}

/** Waits for a call for as long as its caller waits. */
export async function awaitResult(
  { ctx, dispatch }: Services,
  { txn, fingerprint }: { readonly txn: string; readonly fingerprint: Buffer },
  toolCall: Pick<ToolCall, 'tool' | 'agent' | 'patienceMs' | 'cancelToken'>,
  isRepeat: boolean,
  span: Span,
): Promise<ToolAnswer> {
  const subject = { tool: toolCall.tool, agent: toolCall.agent.name, txn };
  const waitSpan = isRepeat ? ctx.telemetry.begin('wait', subject, span) : undefined;
  const { patienceMs, cancelToken } = toolCall;
  try {
    const waiting = awaitCall(ctx, dispatch, txn, patienceMs, cancelToken, fingerprint);
    const call = await mapLedgerErrorToInDoubt(txn, undefined, waiting);
    if (call === undefined) throw buildReleasedError(txn, 'unavailable', 'the call was released before it was sent');
    return { call, repeat: isRepeat };
  } finally {
    waitSpan?.end();
  }
}
