import { buildAuditEntry, sha256Hex } from '../../domain/audit/audit.ts';
import { deriveRunId } from '../../domain/calls/txn-id.ts';
import type { OlderOpenCall, Run, RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError, LedgerError } from '../../domain/errors.ts';
import { isCursor } from '../../ledger/calls/list-calls.ts';
import {
  endRun,
  explainFenced,
  forceEndRun,
  listOlderOpenCalls,
  listRuns,
  type RunFilter,
  readRun,
  readRunCheckpoint,
  recordHeartbeat,
  saveRunCheckpoint,
  takeRun,
} from '../../ledger/controls/runs.ts';
import type { Services } from '../calls/execute-call.ts';
import { logIfRefused, Refusal } from '../calls/refusal.ts';
import { type CancelToken, sleepUnlessCancelled } from '../cancel-token.ts';
import type { Context } from '../context.ts';

const RUN_ID_PATTERN = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
/** More than this many open calls are not spelled out. */
const MAX_OPEN_CALLS = 1_000;
const POLL_DELAY = { firstMs: 20, mostMs: 250 };
/** A claim that another process began and paused in keeps the run for five seconds at most; each try waits for 1.2 s. */
const MAX_TRIES = 6;

/** A run with what a successor without memory needs of it. */
export interface RunView {
  readonly run: Run;
  readonly open: readonly OlderOpenCall[];
  /** JSON text. */
  readonly checkpoint: string | null;
}

export interface TakenRun extends RunView {
  /** The epoch that this taker holds; the run itself may be in a later one by now. */
  readonly epoch: number;
  readonly isRepeat: boolean;
}

export interface RunRequest {
  readonly agent: string;
  readonly name: string;
  readonly ttlMs: number | undefined;
  readonly key: string | undefined;
}

/**
 * Takes a run, or takes it over. When this returns nothing of an older epoch is begun any more, by any replica; `open` are the
 * calls of older epochs that may still land. Waits for those to end as long as the caller has patience.
 */
export async function takeOverRun(
  services: Services,
  wish: RunRequest,
  patienceMs: number,
  caller: CancelToken,
): Promise<TakenRun> {
  const { station: ctx } = services;
  const { agent, name } = wish;
  const id = deriveRunId(ctx.deployment, agent, name);
  const entryOf = (epoch: number, withdrawn: readonly string[]) =>
    buildAuditEntry('run_taken', { run: id, agent, name, epoch, withdrawn: [...withdrawn] });
  const order = { id, agent, name, key: wish.key ?? null, ttlMs: wish.ttlMs ?? null, entryOf };
  const taken = await logIfRefused(ctx, { run: id, agent }, () =>
    retryOnLockTimeout(() => takeRun(ctx.db, order)),
  );
  return { ...(await pollUntilDrained(services, { run: id, epoch: taken.epoch }, patienceMs, caller)), ...taken };
}

/** Somebody else has the run, or rows of its calls, locked just now: of two that wait for each other one is refused. */
async function retryOnLockTimeout<T>(work: () => Promise<T>): Promise<T> {
  for (let left = MAX_TRIES - 1; ; left--) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof LedgerError) || !error.refused || left === 0) throw error;
    }
  }
}

/** A run, to its own agent (or to a person, who names none). Another agent's is as if it did not exist. */
export async function findRun(ctx: Context, id: string, agent: string | undefined): Promise<Run> {
  const run = RUN_ID_PATTERN.test(id) ? await readRun(ctx.db, id) : undefined;
  if (run === undefined || (agent !== undefined && run.agent !== agent)) throw buildRunNotFoundError(id);
  return run;
}

export async function viewRun(ctx: Context, id: string, agent: string | undefined): Promise<RunView> {
  const run = await findRun(ctx, id, agent);
  return loadRunDetails(ctx, run, run.epoch);
}

async function loadRunDetails({ db }: Context, run: Run, epoch: number): Promise<RunView> {
  const open = await listOlderOpenCalls(db, { run: run.id, epoch }, MAX_OPEN_CALLS);
  return { run, open, checkpoint: run.checkpointAt === null ? null : await readRunCheckpoint(db, run.id) };
}

/** Waits until no call of an epoch before this one can land any more, or the patience ends. */
async function pollUntilDrained(
  { station: ctx, dispatch }: Pick<Services, 'station' | 'dispatch'>,
  fence: RunEpoch,
  patienceMs: number,
  caller: CancelToken,
): Promise<RunView> {
  const until = performance.now() + patienceMs;
  for (let poll = POLL_DELAY.firstMs; ; poll = Math.min(poll * 1.5, POLL_DELAY.mostMs)) {
    const left = until - performance.now();
    const isOver = left <= 0 || caller.gone || dispatch.shutdownToken.gone;
    if (isOver || (await listOlderOpenCalls(ctx.db, fence, 1)).length === 0)
      return loadRunDetails(ctx, await findRun(ctx, fence.run, undefined), fence.epoch);
    await sleepUnlessCancelled(Math.min(poll, left), caller, dispatch.shutdownToken);
  }
}

/** The run as it stands, once it is drained or the patience ends. */
export async function awaitRunDrained(
  services: Services,
  id: string,
  agent: string,
  patienceMs: number,
  caller: CancelToken,
): Promise<RunView> {
  const { epoch } = await findRun(services.station, id, agent);
  await pollUntilDrained(services, { run: id, epoch }, patienceMs, caller);
  return viewRun(services.station, id, agent);
}

export async function findRuns(ctx: Context, filter: RunFilter) {
  if (filter.cursor !== undefined && !isCursor(filter.cursor))
    throw new GatewayError('malformed', 'The cursor is not one that this API gave out.');
  return listRuns(ctx.db, filter);
}

/** Keeps what the holder wants its successor to know. `checkpoint` is JSON text. */
export async function recordRunCheckpoint(
  ctx: Context,
  agent: string,
  fence: RunEpoch,
  checkpoint: string,
): Promise<Run> {
  await findRun(ctx, fence.run, agent);
  const entry = buildAuditEntry('run_checkpoint', { ...fence, agent, checkpoint: sha256Hex(checkpoint) });
  await logIfRefused(ctx, { ...fence, agent }, () => saveRunCheckpoint(ctx.db, fence, checkpoint, entry));
  return findRun(ctx, fence.run, agent);
}

export async function keepRunAlive(ctx: Context, agent: string, fence: RunEpoch): Promise<Run> {
  await findRun(ctx, fence.run, agent);
  await logIfRefused(ctx, { ...fence, agent }, () => recordHeartbeat(ctx.db, fence));
  return findRun(ctx, fence.run, agent);
}

/** Its holder is done: it takes no more calls, and is never missed. */
export async function finishRun(ctx: Context, agent: string, fence: RunEpoch): Promise<Run> {
  await findRun(ctx, fence.run, agent);
  const about = { ...fence, agent };
  await logIfRefused(ctx, about, () => endRun(ctx.db, fence, buildAuditEntry('run_finished', about)));
  return findRun(ctx, fence.run, agent);
}

/** A person ends a run that nobody looks after. What its holder has on the wire comes to its end, as after a take-over. */
export async function finishRunAsOperator(
  ctx: Context,
  id: string,
  { person, reason }: { readonly person: string; readonly reason: string },
): Promise<RunView> {
  const { agent } = await findRun(ctx, id, undefined);
  const entryOf = (epoch: number, withdrawn: readonly string[]) =>
    buildAuditEntry('run_finished', { run: id, agent, epoch, person, reason, withdrawn: [...withdrawn] });
  await retryOnLockTimeout(() => forceEndRun(ctx.db, id, entryOf));
  return viewRun(ctx, id, undefined);
}

/** Why a call was not claimed: there is no such run of this agent, or it is not in that epoch. */
export async function refuseStaleEpoch(ctx: Context, { run: id, epoch }: RunEpoch, agent: string): Promise<void> {
  const run = await findRun(ctx, id, agent);
  const why = explainFenced({ epoch: run.epoch, ended: run.endedAt !== null }, { epoch });
  if (why === undefined) return;
  const fenced = new GatewayError('fenced', why, { members: { run: id, epoch: run.epoch } });
  throw new Refusal(fenced, { run: id, epoch, current: run.epoch });
}

function buildRunNotFoundError(id: string): GatewayError {
  return new GatewayError('not_found', `There is no run ${id.slice(0, 64)}.`);
}
