import { createHash, randomUUID } from 'node:crypto';
import { auditEntry } from '../domain/audit.ts';
import { canonical } from '../domain/canonical.ts';
import { GatewayError } from '../domain/errors.ts';
import type { Fence } from '../domain/run.ts';
import type { Saga } from '../domain/saga.ts';
import { sagaId } from '../domain/txn-id.ts';
import { isCursor } from '../ledger/lists.ts';
import {
  addSavepoint,
  commitSaga,
  listSagas,
  openSaga,
  readSagas,
  type SagaFilter,
  standing,
} from '../ledger/sagas.ts';
import type { Unwinding } from '../ledger/undos.ts';
import type { Flow } from './call-tool.ts';
import { type Caller, pause } from './patience.ts';
import { orLogged } from './refusal.ts';
import type { Station } from './station.ts';

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** A saga with its steps. */
export interface SagaStory extends Unwinding {
  readonly saga: Saga;
}

export interface SagaWish {
  readonly name?: string | undefined;
  readonly ttlMs?: number | undefined;
  readonly onExpire?: 'rollback' | 'park' | undefined;
}

/** Opens a saga. Under the same key it is the same saga, however often it is asked for. */
export async function beginSaga(
  station: Station,
  agent: string,
  wish: SagaWish,
  key: string | undefined,
  fence?: Fence,
): Promise<{ readonly story: SagaStory; readonly isRepeat: boolean }> {
  const id = sagaId(station.deployment, agent, key === undefined ? { nonce: randomUUID() } : { key });
  const name = wish.name ?? null;
  const onExpire = wish.onExpire ?? 'rollback';
  const asked = createHash('sha256')
    .update(canonical({ name, ttl: wish.ttlMs ?? null, onExpire }))
    .digest();
  const entry = auditEntry('saga_opened', { saga: id, agent, name, ttlMs: wish.ttlMs ?? null, onExpire });
  const saga = { id, agent, name, key: key ?? null, asked, ttlMs: wish.ttlMs ?? null, onExpire, entry };
  const opened = await orLogged(station, { agent, saga: id }, async () => {
    const there = await openSaga(station.db, saga, fence);
    if (there.sameWish) return there;
    throw new GatewayError('key_reused', 'This key opened a saga with another name, ttl or onExpire.');
  });
  return { story: await readSaga(station, id, agent), isRepeat: !opened.created };
}

/** A saga, to its own agent (or to a person, who names none). Another agent's is as if it did not exist. */
export async function readSaga(station: Station, id: string, agent: string | undefined): Promise<SagaStory> {
  const { saga, steps } = ID.test(id) ? await station.undos.read(id) : { saga: undefined, steps: [] };
  if (saga === undefined || (agent !== undefined && saga.agent !== agent)) throw noSaga(id);
  return { saga, steps };
}

export async function findSagas(station: Station, filter: SagaFilter) {
  if (filter.cursor !== undefined && !isCursor(filter.cursor))
    throw new GatewayError('malformed', 'The cursor is not one that this API gave out.');
  return listSagas(station.db, filter);
}

export async function commit(station: Station, id: string, agent: string, fence?: Fence): Promise<SagaStory> {
  await readSaga(station, id, agent);
  const about = { saga: id, agent };
  await orLogged(station, about, () => commitSaga(station.db, id, fence, auditEntry('saga_committed', about)));
  return readSaga(station, id, agent);
}

export async function savepoint(station: Station, id: string, agent: string, name: string, fence?: Fence) {
  await readSaga(station, id, agent);
  const entry = auditEntry('savepoint', { saga: id, agent, name });
  const made = await orLogged(station, { saga: id, agent }, () => addSavepoint(station.db, id, name, fence, entry));
  return { ...made, name };
}

/** Why a step was not claimed: there is no such saga of this agent, or it takes no more steps. */
export async function refuseClosed(station: Station, id: string, agent: string): Promise<void> {
  const [saga] = ID.test(id) ? await readSagas(station.db, [id]) : [];
  if (saga === undefined || saga.agent !== agent) throw noSaga(id);
  if (saga.state !== 'open' || saga.lapsed)
    throw new GatewayError('saga_closed', `Saga ${id} takes no more steps: it ${standing(saga)}.`);
}

/** A step can only rest on steps of the same saga. */
export async function refuseStrangeDependencies(
  station: Station,
  {
    saga,
    dependsOn,
    agent,
  }: { saga?: string | undefined; dependsOn?: readonly string[] | undefined; agent: { name: string } },
): Promise<void> {
  if (saga === undefined || dependsOn === undefined || dependsOn.length === 0) return;
  const found = await Promise.all(dependsOn.map((txn) => station.calls.read(txn)));
  const strange = dependsOn.filter((_, i) => found[i]?.saga !== saga || found[i]?.ordinal === null);
  if (strange.length === 0) return;
  await refuseClosed(station, saga, agent.name);
  throw new GatewayError('malformed', `Oncegate-Depends-On: ${strange.join(', ')}: no step of saga ${saga}.`);
}

function noSaga(id: string): GatewayError {
  return new GatewayError('not_found', `There is no saga ${id.slice(0, 64)}.`);
}

const POLL = { firstMs: 20, mostMs: 250 };

/** Waits until a rollback comes to rest or the patience ends, and tells how the saga stands then. */
export async function awaitRollback(
  { station, dispatch }: Pick<Flow, 'station' | 'dispatch'>,
  id: string,
  agent: string | undefined,
  patienceMs: number,
  caller: Caller,
): Promise<SagaStory> {
  const until = performance.now() + patienceMs;
  for (let poll = POLL.firstMs; ; poll = Math.min(poll * 1.5, POLL.mostMs)) {
    const story = await readSaga(station, id, agent);
    const left = until - performance.now();
    if (story.saga.state !== 'rolling_back' || left <= 0 || caller.gone || dispatch.stopping.gone) return story;
    await pause(Math.min(poll, left), caller, dispatch.stopping);
  }
}
