import { createHash, randomUUID } from 'node:crypto';
import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { deriveSagaId } from '../../domain/calls/txn-id.ts';
import { canonicalize } from '../../domain/canonical.ts';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Saga } from '../../domain/sagas/saga.ts';
import { isCursor } from '../../ledger/calls/list-calls.ts';
import {
  addSavepoint,
  commitSaga,
  describeSagaState,
  listSagas,
  openSaga,
  readSagas,
  type SagaFilter,
} from '../../ledger/sagas/sagas.ts';
import type { UndoTarget } from '../../ledger/sagas/undos.ts';
import type { Services } from '../calls/execute-call.ts';
import { logIfRefused } from '../calls/refusals.ts';
import { type CancelToken, sleepUnlessCancelled } from '../cancel-token.ts';
import type { Context } from '../context.ts';

const SAGA_ID_PATTERN = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** A saga with its steps. */
export interface SagaWithSteps extends UndoTarget {
  readonly saga: Saga;
}

export interface SagaRequest {
  readonly name?: string | undefined;
  readonly ttlMs?: number | undefined;
  readonly onExpire?: 'rollback' | 'park' | undefined;
}

/** Opens a saga. Requests with the same key open one saga. */
export async function beginSaga(
  ctx: Context,
  agent: string,
  request: SagaRequest,
  key: string | undefined,
  runEpoch?: RunEpoch,
): Promise<{ readonly sagaWithSteps: SagaWithSteps; readonly isRepeat: boolean }> {
  const id = deriveSagaId(ctx.deployment, agent, key === undefined ? { nonce: randomUUID() } : { key });
  const { name = null, ttlMs = null, onExpire = 'rollback' } = request;
  const requestDigest = createHash('sha256')
    .update(canonicalize({ name, ttl: ttlMs, onExpire }))
    .digest();
  const entry = buildAuditEntry('saga_opened', { saga: id, agent, name, ttlMs, onExpire });
  const saga = { id, agent, name, key: key ?? null, requestDigest, ttlMs, onExpire, entry };
  const opened = await logIfRefused(ctx, { agent, saga: id }, async () => {
    const existing = await openSaga(ctx.db, saga, runEpoch);
    if (existing.isSameRequest) return existing;
    throw new GatewayError(
      'key_reused',
      'This Idempotency-Key already opened a saga with another name, ttl or onExpire. Use a new key.',
    );
  });
  return { sagaWithSteps: await readSaga(ctx, id, agent), isRepeat: !opened.created };
}

/** Reads a saga. With `agent`, the saga of another agent is not found; a person passes undefined. */
export async function readSaga(ctx: Context, id: string, agent: string | undefined): Promise<SagaWithSteps> {
  const { saga, steps } = SAGA_ID_PATTERN.test(id) ? await ctx.undos.read(id) : { saga: undefined, steps: [] };
  if (saga === undefined || (agent !== undefined && saga.agent !== agent)) throw buildSagaNotFoundError(id);
  return { saga, steps };
}

export async function findSagas(ctx: Context, filter: SagaFilter) {
  if (filter.cursor !== undefined && !isCursor(filter.cursor))
    throw new GatewayError('malformed', 'The cursor is invalid. Use the cursor of the previous page.');
  return listSagas(ctx.db, filter);
}

export async function commitOwnSaga(
  ctx: Context,
  id: string,
  agent: string,
  runEpoch?: RunEpoch,
): Promise<SagaWithSteps> {
  await readSaga(ctx, id, agent);
  const about = { saga: id, agent };
  await logIfRefused(ctx, about, () => commitSaga(ctx.db, id, runEpoch, buildAuditEntry('saga_committed', about)));
  return readSaga(ctx, id, agent);
}

export async function createSavepoint(ctx: Context, id: string, agent: string, name: string, runEpoch?: RunEpoch) {
  await readSaga(ctx, id, agent);
  const entry = buildAuditEntry('savepoint', { saga: id, agent, name });
  const made = await logIfRefused(ctx, { saga: id, agent }, () => addSavepoint(ctx.db, id, name, runEpoch, entry));
  return { ...made, name };
}

/** Throws the reason why a step was not claimed: the agent has no such saga, or the saga takes no more steps. */
export async function refuseClosedSaga(ctx: Context, id: string, agent: string): Promise<void> {
  const [saga] = SAGA_ID_PATTERN.test(id) ? await readSagas(ctx.db, [id]) : [];
  if (saga === undefined || saga.agent !== agent) throw buildSagaNotFoundError(id);
  if (saga.state !== 'open' || saga.lapsed)
    throw new GatewayError('saga_closed', `Saga ${id} takes no more steps: it ${describeSagaState(saga)}.`);
}

/** A step can depend only on steps of the same saga. */
export async function refuseForeignDependencies(
  ctx: Context,
  {
    saga,
    dependsOn,
    agent,
  }: { saga?: string | undefined; dependsOn?: readonly string[] | undefined; agent: { name: string } },
): Promise<void> {
  if (saga === undefined || dependsOn === undefined || dependsOn.length === 0) return;
  const calls = await Promise.all(dependsOn.map((txn) => ctx.calls.read(txn)));
  const foreign = dependsOn.filter((_, i) => calls[i]?.saga !== saga || calls[i]?.ordinal === null);
  if (foreign.length === 0) return;
  await refuseClosedSaga(ctx, saga, agent.name);
  throw new GatewayError(
    'malformed',
    `Oncegate-Depends-On names calls that are not steps of saga ${saga}: ${foreign.join(', ')}.`,
  );
}

function buildSagaNotFoundError(id: string): GatewayError {
  return new GatewayError('not_found', `There is no saga ${id.slice(0, 64)}.`);
}

const POLL_DELAY = { firstMs: 20, maxMs: 250 };

/** Waits until a rollback ends, `patienceMs` passes, or the caller or the gateway is gone. Then returns the saga. */
export async function awaitRollback(
  { ctx, dispatch }: Pick<Services, 'ctx' | 'dispatch'>,
  id: string,
  agent: string | undefined,
  patienceMs: number,
  cancelToken: CancelToken,
): Promise<SagaWithSteps> {
  const deadline = performance.now() + patienceMs;
  const { shutdownToken } = dispatch;
  for (let delayMs = POLL_DELAY.firstMs; ; delayMs = Math.min(delayMs * 1.5, POLL_DELAY.maxMs)) {
    const current = await readSaga(ctx, id, agent);
    const leftMs = deadline - performance.now();
    const isOver = current.saga.state !== 'rolling_back';
    if (isOver || leftMs <= 0 || cancelToken.isCancelled || shutdownToken.isCancelled) return current;
    await sleepUnlessCancelled(Math.min(delayMs, leftMs), cancelToken, shutdownToken);
  }
}
