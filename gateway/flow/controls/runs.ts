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
import { logIfRefused, Refusal } from '../calls/refusals.ts';
import { type CancelToken, sleepUnlessCancelled } from '../cancel-token.ts';
import type { Context } from '../context.ts';

const RUN_ID_PATTERN = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
/** At most this many open calls are listed. */
const MAX_OPEN_CALLS = 1_000;
const POLL_DELAY = { firstMs: 20, maxMs: 250 };
/** Enough to outlast a claim in a paused process, which locks the run for at most 5 s. Each try waits 1.2 s for the lock. */
const MAX_TRIES = 6;

/** A run with the data that a successor without memory needs. */
export interface RunView {
  readonly run: Run;
  readonly open: readonly OlderOpenCall[];
  /** JSON text. */
  readonly checkpoint: string | null;
}

export interface TakenRun extends RunView {
  /** The epoch of this holder. The run may be in a later epoch by now. */
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
 * Takes a run, or takes it over. After this returns, no replica starts a call of an older epoch. `open` lists the calls of
 * older epochs that may still have an effect; this waits at most `patienceMs` for them to end.
 */
export async function takeOverRun(
  services: Services,
  request: RunRequest,
  patienceMs: number,
  cancelToken: CancelToken,
): Promise<TakenRun> {
  const { ctx } = services;
  const { agent, name } = request;
  const id = deriveRunId(ctx.deployment, agent, name);
  const buildEntry = (epoch: number, withdrawn: readonly string[]) =>
    buildAuditEntry('run_taken', { run: id, agent, name, epoch, withdrawn: [...withdrawn] });
  const takeover = { id, agent, name, key: request.key ?? null, ttlMs: request.ttlMs ?? null, buildEntry };
  const taken = await logIfRefused(ctx, { run: id, agent }, () => retryOnLockTimeout(() => takeRun(ctx.db, takeover)));
  return { ...(await pollUntilDrained(services, { run: id, epoch: taken.epoch }, patienceMs, cancelToken)), ...taken };
}

/** Retries while another transaction has the run or its calls locked, and after PostgreSQL aborted the write to end a deadlock. */
async function retryOnLockTimeout<T>(write: () => Promise<T>): Promise<T> {
  for (let triesLeft = MAX_TRIES - 1; ; triesLeft--) {
    try {
      return await write();
    } catch (error) {
      if (!(error instanceof LedgerError) || !error.isRejected || triesLeft === 0) throw error;
    }
  }
}

/** Reads a run. With `agent`, the run of another agent is not found; a person passes undefined. */
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

/** Waits until no call of an older epoch can have an effect, `patienceMs` passes, or the caller or the gateway is gone. */
async function pollUntilDrained(
  { ctx, dispatch }: Pick<Services, 'ctx' | 'dispatch'>,
  runEpoch: RunEpoch,
  patienceMs: number,
  cancelToken: CancelToken,
): Promise<RunView> {
  const deadline = performance.now() + patienceMs;
  for (let delayMs = POLL_DELAY.firstMs; ; delayMs = Math.min(delayMs * 1.5, POLL_DELAY.maxMs)) {
    const leftMs = deadline - performance.now();
    const shouldStop = leftMs <= 0 || cancelToken.isCancelled || dispatch.shutdownToken.isCancelled;
    if (shouldStop || (await listOlderOpenCalls(ctx.db, runEpoch, 1)).length === 0)
      return loadRunDetails(ctx, await findRun(ctx, runEpoch.run, undefined), runEpoch.epoch);
    await sleepUnlessCancelled(Math.min(delayMs, leftMs), cancelToken, dispatch.shutdownToken);
  }
}

/** Waits until the run is drained or `patienceMs` passes, and then reads it. */
export async function awaitRunDrained(
  services: Services,
  id: string,
  agent: string,
  patienceMs: number,
  cancelToken: CancelToken,
): Promise<RunView> {
  const { epoch } = await findRun(services.ctx, id, agent);
  await pollUntilDrained(services, { run: id, epoch }, patienceMs, cancelToken);
  return viewRun(services.ctx, id, agent);
}

export async function findRuns(ctx: Context, filter: RunFilter) {
  if (filter.cursor !== undefined && !isCursor(filter.cursor))
    throw new GatewayError('malformed', 'The cursor is invalid. Use the cursor of the previous page.');
  return listRuns(ctx.db, filter);
}

/** Stores the checkpoint that the holder leaves for its successor. `checkpoint` is JSON text. */
export async function recordRunCheckpoint(
  ctx: Context,
  agent: string,
  runEpoch: RunEpoch,
  checkpoint: string,
): Promise<Run> {
  await findRun(ctx, runEpoch.run, agent);
  const entry = buildAuditEntry('run_checkpoint', { ...runEpoch, agent, checkpoint: sha256Hex(checkpoint) });
  await logIfRefused(ctx, { ...runEpoch, agent }, () => saveRunCheckpoint(ctx.db, runEpoch, checkpoint, entry));
  return findRun(ctx, runEpoch.run, agent);
}

export async function keepRunAlive(ctx: Context, agent: string, runEpoch: RunEpoch): Promise<Run> {
  await findRun(ctx, runEpoch.run, agent);
  await logIfRefused(ctx, { ...runEpoch, agent }, () => recordHeartbeat(ctx.db, runEpoch));
  return findRun(ctx, runEpoch.run, agent);
}

/** Ends a run whose holder is done. The run takes no more calls, and never counts as abandoned. */
export async function finishRun(ctx: Context, agent: string, runEpoch: RunEpoch): Promise<Run> {
  await findRun(ctx, runEpoch.run, agent);
  const about = { ...runEpoch, agent };
  await logIfRefused(ctx, about, () => endRun(ctx.db, runEpoch, buildAuditEntry('run_finished', about)));
  return findRun(ctx, runEpoch.run, agent);
}

/** Ends an abandoned run on a person's request. Calls that its holder has already sent end normally, as after a takeover. */
export async function finishRunAsOperator(
  ctx: Context,
  id: string,
  { person, reason }: { readonly person: string; readonly reason: string },
): Promise<RunView> {
  const { agent } = await findRun(ctx, id, undefined);
  const buildEntry = (epoch: number, withdrawn: readonly string[]) =>
    buildAuditEntry('run_finished', { run: id, agent, epoch, person, reason, withdrawn: [...withdrawn] });
  await retryOnLockTimeout(() => forceEndRun(ctx.db, id, buildEntry));
  return viewRun(ctx, id, undefined);
}

/** Throws the reason why a call was not claimed: the agent has no such run, or the run is in another epoch. */
export async function refuseStaleEpoch(ctx: Context, { run: id, epoch }: RunEpoch, agent: string): Promise<void> {
  const run = await findRun(ctx, id, agent);
  const reason = explainFenced({ epoch: run.epoch, isEnded: run.endedAt !== null }, { epoch });
  if (reason === undefined) return;
  const fenced = new GatewayError('fenced', reason, { members: { run: id, epoch: run.epoch } });
  throw new Refusal(fenced, { run: id, epoch, current: run.epoch });
}

function buildRunNotFoundError(id: string): GatewayError {
  return new GatewayError('not_found', `There is no run ${id.slice(0, 64)}.`);
}
