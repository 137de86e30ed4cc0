import { auditEntry, digest } from '../domain/audit.ts';
import { GatewayError, LedgerError } from '../domain/errors.ts';
import type { Fence, OpenCall, Run } from '../domain/run.ts';
import { runId } from '../domain/txn-id.ts';
import { isCursor } from '../ledger/lists.ts';
import {
  endRun,
  endRunByHand,
  listRuns,
  noteHeartbeat,
  openBelow,
  type RunFilter,
  readCheckpoint,
  readRun,
  saveCheckpoint,
  takeRun,
  whyFenced,
} from '../ledger/runs.ts';
import type { Flow } from './call-tool.ts';
import { type Caller, pause } from './patience.ts';
import { orLogged, Refusal } from './refusal.ts';
import type { Station } from './station.ts';

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
/** More than this many open calls are not spelled out. */
const MOST_OPEN = 1_000;
const POLL = { firstMs: 20, mostMs: 250 };
/** A claim that another process began and paused in keeps the run for five seconds at most; each try waits for 1.2 s. */
const TRIES = 6;

/** A run with what a successor without memory needs of it. */
export interface RunStory {
  readonly run: Run;
  readonly open: readonly OpenCall[];
  /** JSON text. */
  readonly checkpoint: string | null;
}

export interface TakenRun extends RunStory {
  /** The epoch that this taker holds; the run itself may be in a later one by now. */
  readonly epoch: number;
  readonly isRepeat: boolean;
}

export interface RunWish {
  readonly agent: string;
  readonly name: string;
  readonly ttlMs: number | undefined;
  readonly key: string | undefined;
}

/**
 * Takes a run, or takes it over. When this returns nothing of an older epoch is begun any more, by any replica; `open` are the
 * calls of older epochs that may still land. Waits for those to end as long as the caller has patience.
 */
export async function take(flow: Flow, wish: RunWish, patienceMs: number, caller: Caller): Promise<TakenRun> {
  const { station } = flow;
  const { agent, name } = wish;
  const id = runId(station.deployment, agent, name);
  const entryOf = (epoch: number, withdrawn: readonly string[]) =>
    auditEntry('run_taken', { run: id, agent, name, epoch, withdrawn: [...withdrawn] });
  const order = { id, agent, name, key: wish.key ?? null, ttlMs: wish.ttlMs ?? null, entryOf };
  const taken = await orLogged(station, { run: id, agent }, () => whenFree(() => takeRun(station.db, order)));
  return { ...(await awaitDrained(flow, { run: id, epoch: taken.epoch }, patienceMs, caller)), ...taken };
}

/** Somebody else has the run, or rows of its calls, locked just now: of two that wait for each other one is refused. */
async function whenFree<T>(work: () => Promise<T>): Promise<T> {
  for (let left = TRIES - 1; ; left--) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof LedgerError) || !error.refused || left === 0) throw error;
    }
  }
}

/** A run, to its own agent (or to a person, who names none). Another agent's is as if it did not exist. */
export async function findRun(station: Station, id: string, agent: string | undefined): Promise<Run> {
  const run = ID.test(id) ? await readRun(station.db, id) : undefined;
  if (run === undefined || (agent !== undefined && run.agent !== agent)) throw noRun(id);
  return run;
}

export async function tellRun(station: Station, id: string, agent: string | undefined): Promise<RunStory> {
  const run = await findRun(station, id, agent);
  return storyOf(station, run, run.epoch);
}

async function storyOf({ db }: Station, run: Run, epoch: number): Promise<RunStory> {
  const open = await openBelow(db, { run: run.id, epoch }, MOST_OPEN);
  return { run, open, checkpoint: run.checkpointAt === null ? null : await readCheckpoint(db, run.id) };
}

/** Waits until no call of an epoch before this one can land any more, or the patience ends. */
async function awaitDrained(
  { station, dispatch }: Pick<Flow, 'station' | 'dispatch'>,
  fence: Fence,
  patienceMs: number,
  caller: Caller,
): Promise<RunStory> {
  const until = performance.now() + patienceMs;
  for (let poll = POLL.firstMs; ; poll = Math.min(poll * 1.5, POLL.mostMs)) {
    const left = until - performance.now();
    const isOver = left <= 0 || caller.gone || dispatch.stopping.gone;
    if (isOver || (await openBelow(station.db, fence, 1)).length === 0)
      return storyOf(station, await findRun(station, fence.run, undefined), fence.epoch);
    await pause(Math.min(poll, left), caller, dispatch.stopping);
  }
}

/** The run as it stands, once it is drained or the patience ends. */
export async function awaitRun(
  flow: Flow,
  id: string,
  agent: string,
  patienceMs: number,
  caller: Caller,
): Promise<RunStory> {
  const { epoch } = await findRun(flow.station, id, agent);
  await awaitDrained(flow, { run: id, epoch }, patienceMs, caller);
  return tellRun(flow.station, id, agent);
}

export async function findRuns(station: Station, filter: RunFilter) {
  if (filter.cursor !== undefined && !isCursor(filter.cursor))
    throw new GatewayError('malformed', 'The cursor is not one that this API gave out.');
  return listRuns(station.db, filter);
}

/** Keeps what the holder wants its successor to know. `checkpoint` is JSON text. */
export async function keepCheckpoint(station: Station, agent: string, fence: Fence, checkpoint: string): Promise<Run> {
  await findRun(station, fence.run, agent);
  const entry = auditEntry('run_checkpoint', { ...fence, agent, checkpoint: digest(checkpoint) });
  await orLogged(station, { ...fence, agent }, () => saveCheckpoint(station.db, fence, checkpoint, entry));
  return findRun(station, fence.run, agent);
}

export async function heartbeat(station: Station, agent: string, fence: Fence): Promise<Run> {
  await findRun(station, fence.run, agent);
  await orLogged(station, { ...fence, agent }, () => noteHeartbeat(station.db, fence));
  return findRun(station, fence.run, agent);
}

/** Its holder is done: it takes no more calls, and is never missed. */
export async function finish(station: Station, agent: string, fence: Fence): Promise<Run> {
  await findRun(station, fence.run, agent);
  const about = { ...fence, agent };
  await orLogged(station, about, () => endRun(station.db, fence, auditEntry('run_finished', about)));
  return findRun(station, fence.run, agent);
}

/** A person ends a run that nobody looks after. What its holder has on the wire comes to its end, as after a take-over. */
export async function finishByHand(
  station: Station,
  id: string,
  { person, reason }: { readonly person: string; readonly reason: string },
): Promise<RunStory> {
  const { agent } = await findRun(station, id, undefined);
  const entryOf = (epoch: number, withdrawn: readonly string[]) =>
    auditEntry('run_finished', { run: id, agent, epoch, person, reason, withdrawn: [...withdrawn] });
  await whenFree(() => endRunByHand(station.db, id, entryOf));
  return tellRun(station, id, undefined);
}

/** Why a call was not claimed: there is no such run of this agent, or it is not in that epoch. */
export async function refuseFenced(station: Station, { run: id, epoch }: Fence, agent: string): Promise<void> {
  const run = await findRun(station, id, agent);
  const why = whyFenced({ epoch: run.epoch, ended: run.endedAt !== null }, { epoch });
  if (why === undefined) return;
  const fenced = new GatewayError('fenced', why, { members: { run: id, epoch: run.epoch } });
  throw new Refusal(fenced, { run: id, epoch, current: run.epoch });
}

function noRun(id: string): GatewayError {
  return new GatewayError('not_found', `There is no run ${id.slice(0, 64)}.`);
}
