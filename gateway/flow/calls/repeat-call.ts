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
import { markDelivered } from './own-calls.ts';
import { refuseKeyReuse } from './refuse.ts';
import type { CachedAnswer } from './replay-cache.ts';
import { deriveKeyAlias, isParticipant, joinSharedCall, redactForJoiner, resolveAlias } from './shared-keys.ts';

/**
 * The same request made before, by this agent or joined by it. Without a tool, because it is no longer declared, only a key
 * still finds it.
 */
export async function findEarlierCall(
  station: Context,
  asked: ToolCall,
  tool: Tool | undefined,
  fingerprint: Buffer,
): Promise<Call | undefined> {
  const agent = asked.agent.name;
  if (tool === undefined && asked.key === undefined) return undefined;
  try {
    const txn =
      tool === undefined
        ? deriveKeyAlias(station, agent, asked.key ?? '')
        : (await identifyCall(station, asked, tool, fingerprint)).txn;
    const call =
      (await station.calls.read(txn)) ?? (asked.key === undefined ? undefined : await resolveAlias(station, txn));
    if (call === undefined || !call.fingerprint.equals(fingerprint)) return undefined;
    return (await isParticipant(station, call, agent)) ? call : undefined;
  } catch (error) {
    if (error instanceof GatewayError) return undefined;
    throw error;
  }
}

/**
 * A call that was there before: another request, an answer to replay, or one to wait for. It may have been sent: where the ledger
 * cannot be read, that is what is told, and not that nothing was.
 */
export function answerRepeat(
  flow: Services,
  txn: string,
  fingerprint: Buffer,
  asked: ToolCall,
  stint: Span,
): Promise<ToolAnswer> {
  return inDoubtIfUnrecorded(txn, undefined, readAndAnswerRepeat(flow, txn, fingerprint, asked, stint));
}

/** What fails because the ledger does, told of a call that may have been sent. */
export function inDoubtIfUnrecorded<T>(txn: string, state: CallState | undefined, work: Promise<T>): Promise<T> {
  return work.catch((error: unknown) => {
    throw error instanceof LedgerError ? buildUnrecordedError(txn, state) : error;
  });
}

async function readAndAnswerRepeat(
  flow: Services,
  txn: string,
  fingerprint: Buffer,
  asked: ToolCall,
  stint: Span,
): Promise<ToolAnswer> {
  const asOf = flow.station.finals.asOf();
  const call = (await flow.station.calls.read(txn)) ?? (await resolveAlias(flow.station, txn));
  if (call === undefined && asked.fence !== undefined)
    await refuseStaleEpoch(flow.station, asked.fence, asked.agent.name);
  if (call === undefined && asked.saga !== undefined)
    await refuseClosedSaga(flow.station, asked.saga, asked.agent.name);
  if (call === undefined)
    throw buildReleasedError(txn, 'unavailable', 'the earlier call was given up before it was sent');
  refuseKeyReuse(call, call.fingerprint, asked, fingerprint);
  if (call.erasedAt !== null) throw new AnswerErasedError(call);
  await joinSharedCall(flow.station, call, asked);
  if (call.agent !== asked.agent.name) return redactForJoiner(call.txn, awaitResult(flow, call, asked, true, stint));
  if (isFinalState(call.state) && call.settledAt !== null) {
    const told = summarizeCall(call);
    flow.station.finals.keep(told, call.fingerprint, call.readAt.getTime() - call.settledAt.getTime(), asOf);
    return { call: told, repeat: true };
  }
  return awaitResult(flow, call, asked, true, stint);
}

/** What was answered is erased: nobody is told it any more. */
class AnswerErasedError extends GatewayError {
  readonly call: Pick<Call, 'txn' | 'identity' | 'state'>;

  constructor(call: Pick<Call, 'txn' | 'identity' | 'state'>) {
    const text =
      call.identity === 'repeat'
        ? 'This very call was made before and what was answered is past its retention. It is not made anew: for that, bring a key.'
        : 'This key is past its retention: what was answered is gone, and it is never executed anew.';
    super('key_expired', text, { txn: call.txn, state: call.state });
    this.call = call;
  }
}

/**
 * Whoever hears that an answer is gone has heard all there is to hear: without a key the same wish is a new one after that,
 * as after any answer, or its agent would be kept from it for ever. Said once that is in the log, to one who still listens.
 */
export function markErasureDelivered(flow: Services, { caller }: ToolCall, error: unknown): void {
  if (error instanceof AnswerErasedError && caller?.gone !== true) markDelivered(flow, error.call);
}

/**
 * The same request that was made under the same key when the tool's key was another one, or not shared: it is still the one
 * that the key stands for.
 */
export async function findEarlierCallByKey(
  station: Context,
  { agent, key }: ToolCall,
  txn: string,
  fingerprint: Buffer,
): Promise<Call | undefined> {
  if (key === undefined) return undefined;
  const alias = deriveKeyAlias(station, agent.name, key);
  const call = (await station.calls.read(alias)) ?? (await resolveAlias(station, alias));
  if (call === undefined || call.txn === txn || !call.fingerprint.equals(fingerprint)) return undefined;
  return (await isParticipant(station, call, agent.name)) ? call : undefined;
}

/** What this process answered a moment ago to the key that comes with the request. */
export function findCachedByKey(station: Context, { agent, key }: ToolCall): CachedAnswer | undefined {
  return key === undefined ? undefined : station.finals.underKey(agent.name, key);
}

/** What was answered is remembered under the key that came with the request, and by what it was asked with. */
export function cacheKey(station: Context, asked: ToolCall, fingerprint: Buffer, { txn, identity }: CallSummary): void {
  const { agent, key } = asked;
  if (key === undefined || identity !== 'key') return;
  const redacts = station.policies().tools.get(asked.tool)?.redact.length !== 0;
  station.finals.noteKey(txn, fingerprint, { agent: agent.name, key, body: redacts ? undefined : asked.body });
}

/** Answered a moment ago by this process: told again without asking the ledger. */
export function replayCached(
  { face: call, fingerprint: first }: CachedAnswer,
  asked: ToolCall,
  fingerprint: Buffer,
): ToolAnswer {
  refuseKeyReuse(call, first, asked, fingerprint);
  return { call, repeat: true };
}

/** Waits for a call, for as long as its caller does. */
export async function awaitResult(
  { station, dispatch }: Services,
  { txn, fingerprint }: { readonly txn: string; readonly fingerprint: Buffer },
  asked: Pick<ToolCall, 'tool' | 'agent' | 'patienceMs' | 'caller'>,
  isRepeat: boolean,
  stint: Span,
): Promise<ToolAnswer> {
  const about = { tool: asked.tool, agent: asked.agent.name, txn };
  const waiting = isRepeat ? station.watch.begin('wait', about, stint) : undefined;
  const { patienceMs, caller } = asked;
  try {
    const waited = awaitCall(station, dispatch, txn, patienceMs, caller, fingerprint);
    const call = await inDoubtIfUnrecorded(txn, undefined, waited);
    if (call === undefined) throw buildReleasedError(txn, 'unavailable', 'it was given up before it was sent');
    return { call, repeat: isRepeat };
  } finally {
    waiting?.end();
  }
}
