import { randomInt } from 'node:crypto';
import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { createCallRecord } from '../../domain/calls/call-record.ts';
import { GatewayError, LedgerError } from '../../domain/errors.ts';
import { isOwnedBy, releaseClaim } from '../../ledger/calls/call-ownership.ts';
import {
  CLAIM_TAKEN,
  type ClaimGuards,
  type ClaimTaken,
  type ClaimWon,
  type NewCall,
  type StaleDecision,
} from '../../ledger/calls/claim.ts';
import type { LimitExceeded } from '../../ledger/calls/limits.ts';
import type { LockConflict } from '../../ledger/controls/locks.ts';
import { renderVotes } from '../approvals/votes.ts';
import type { Dispatch } from '../attempts/dispatch.ts';
import { createInFlightCall, type InFlightCall, type NewInFlightCall, patchCall } from '../attempts/in-flight-call.ts';
import type { Context } from '../context.ts';
import { retryWhileLocked } from '../controls/locks.ts';
import { refuseForeignDependencies } from '../sagas/sagas.ts';
import { buildStoredUndo } from '../sagas/undo.ts';
import type { PreparedCall } from './admit-call.ts';
import type { Services } from './execute-call.ts';
import { encodePayload, type Payload } from './payload.ts';
import { buildLockedRefusal, buildOverLimitRefusal, refuseUnlessLeaseHeld } from './refusals.ts';
import { canSkipLedger, registerUnrecordedRead } from './unrecorded-reads.ts';

/** The claim was won, and the call is registered with `Dispatch`: start it next. */
export interface RegisteredCall {
  readonly kind: 'registered';
  readonly inFlight: InFlightCall;
}

/** The claim was won. The call waits for a person or for its delay, and this process sends nothing for it now. */
interface HeldCall {
  readonly kind: 'held';
}

const CLAIM_HELD: HeldCall = { kind: 'held' };

/** What became of the claim of a call. */
type CallClaim = RegisteredCall | HeldCall | ClaimTaken | StaleDecision;

/** What the execution of a claimed call needs beside its record. */
type CallSource = Pick<NewInFlightCall, 'tool' | 'payload' | 'progressListener' | 'span'>;

/** The latest that PostgreSQL can still commit a statement after this process gave up on it. */
const MAX_LATE_COMMIT_MS = 60_000;

interface UnconfirmedClaim {
  readonly txn: string;
  /** Null for a held call. It must be released too, because it could be sent later without a caller. */
  readonly owner: string | null;
  readonly fence: number;
  readonly sinceMs: number;
  /** The ledger was read at least once and did not have the claim, so a new claim may be tried. */
  wasLookedUp: boolean;
}

/**
 * Claims calls, and releases claims whose commit is unknown. Nothing is sent for such a claim. This class looks for it in the
 * ledger for as long as PostgreSQL can still commit it, and releases it if it appears. A crash before the release leaves a
 * `sending` call whose owner is dead, as after any claim.
 */
export class Claims {
  readonly #ctx: Context;
  readonly #dispatch: Dispatch;
  readonly #claiming = new Map<string, Promise<boolean>>();
  readonly #unconfirmed = new Map<string, UnconfirmedClaim>();

  constructor(ctx: Context, dispatch: Dispatch) {
    this.#ctx = ctx;
    this.#dispatch = dispatch;
  }

  /** Claims a call. A won call that is not held is registered with `Dispatch` before any other request can see the claim. */
  async claim(
    newCall: NewCall,
    guards: ClaimGuards | undefined,
    source: CallSource,
  ): Promise<CallClaim | LimitExceeded | LockConflict> {
    const { txn, owner, fence } = newCall.record;
    // Wait while another request claims the same txn: its call can be read only after the commit. If the ledger fails that
    // claim, this claim fails too. Otherwise all requests would try one after another, and the last would wait for ever.
    for (let other = this.#claiming.get(txn); other !== undefined; other = this.#claiming.get(txn)) {
      if (!(await other)) throw buildLedgerUnwritableError(txn);
    }
    if (this.#unconfirmed.get(txn)?.wasLookedUp === false) throw buildLedgerUnwritableError(txn);
    if (this.#dispatch.findInFlight(txn) !== undefined) return CLAIM_TAKEN;
    let resolveClaiming = (_: boolean) => {};
    this.#claiming.set(txn, new Promise<boolean>((resolve) => (resolveClaiming = resolve)));
    let isWritable = true;
    try {
      const claimed = await this.#ctx.calls.claim(newCall, guards);
      return claimed.kind === 'won' ? this.#register(newCall, source, claimed) : claimed;
    } catch (error) {
      // Any other error is a refusal, and the ledger works. Requests that wait for this txn then try their own claim.
      if (!(error instanceof LedgerError)) throw error;
      isWritable = false;
      if (error.isCommitUnknown) {
        this.#unconfirmed.set(txn, { txn, owner, fence, sinceMs: performance.now(), wasLookedUp: false });
      }
      this.#ctx.log.warn({ txn, err: error.message }, 'A call could not be claimed. Nothing was sent.');
      throw buildLedgerUnwritableError(txn);
    } finally {
      this.#claiming.delete(txn);
      resolveClaiming(isWritable);
    }
  }

  /** Registers a won call, unless it is held: a held call has no owner. */
  #register({ record }: NewCall, source: CallSource, { lockToken }: ClaimWon): CallClaim {
    const { owner } = record;
    if (owner === null) return CLAIM_HELD;
    this.#ctx.reachKillPoint('claimed');
    const { tool, payload, progressListener, span } = source;
    const inFlight = createInFlightCall({ record, owner, tool, payload, progressListener, span, isRecorded: true });
    if (lockToken !== null) patchCall(inFlight, { lockToken });
    return { kind: 'registered', inFlight: this.#dispatch.register(inFlight) };
  }

  /** Whether a claim of this txn is being written, or its commit is unknown. */
  isClaimPending(txn: string): boolean {
    return this.#claiming.has(txn) || this.#unconfirmed.has(txn);
  }

  /** Releases the claims whose commit was unknown and that the ledger has. Cheap when there are none. */
  async releaseUnconfirmed(): Promise<void> {
    for (const [txn, claim] of this.#unconfirmed) {
      if (this.#claiming.has(txn) || this.#dispatch.findInFlight(txn) !== undefined) continue;
      if (await isOwnedBy(this.#ctx.db, txn, claim.owner)) {
        if (this.#claiming.has(txn) || this.#dispatch.findInFlight(txn) !== undefined) continue;
        const entry = buildAuditEntry('call_released', { txn, detail: 'the claim could not be confirmed in time' });
        await releaseClaim(this.#ctx.db, claim, entry);
        this.#unconfirmed.delete(txn);
      } else if (performance.now() - claim.sinceMs > MAX_LATE_COMMIT_MS) {
        this.#unconfirmed.delete(txn);
      } else {
        claim.wasLookedUp = true;
      }
    }
  }
}

function buildLedgerUnwritableError(txn: string): GatewayError {
  const detail = 'The ledger cannot be written, so nothing was sent. Ask again with the same key.';
  return new GatewayError('unavailable', detail, { txn, retryAfterSeconds: 1 });
}

/**
 * Claims a prepared call. A read that needs no record is registered without a claim. A crash before the commit leaves
 * nothing. A crash after the commit leaves a `sending` call whose owner is dead: its outcome is unknown, although perhaps
 * nothing was sent.
 */
export async function claimCall(services: Services, prepared: PreparedCall): Promise<CallClaim> {
  if (canSkipLedger(prepared)) return registerUnrecordedRead(services, prepared);
  const { ctx, dispatch, claims } = services;
  const { allowed, identified, request, guards } = prepared;
  const { call, decision } = allowed;
  const { toolCall } = call;
  if (toolCall.dependsOn !== undefined) await refuseForeignDependencies(ctx, toolCall);
  const claimSpan = ctx.telemetry.begin('claim', call.subject, call.span);
  try {
    if (dispatch.findInFlight(identified.txn) !== undefined) return CLAIM_TAKEN;
    const owner = ctx.lease.id;
    const payload = { args: toolCall.args, request };
    const newCall = buildNewCall(ctx, prepared, payload, owner);
    refuseUnlessLeaseHeld(ctx, owner);
    ctx.reachKillPoint('claiming');
    if (identified.recordGeneration !== undefined) await identified.recordGeneration();
    const { progressListener, cancelToken } = toolCall;
    const source = { tool: decision.tool, payload, progressListener, span: call.span };
    const attempt = () => {
      // Checked before each try: this process may lose its lease while it waits for a lock.
      refuseUnlessLeaseHeld(ctx, owner);
      return claims.claim(newCall, guards, source);
    };
    const claimed =
      guards?.locks === undefined
        ? await attempt()
        : await retryWhileLocked(attempt, call.until, cancelToken, dispatch.shutdownToken);
    if (claimed.kind === 'lock_conflict') throw buildLockedRefusal(allowed, claimed);
    if (claimed.kind === 'limit_exceeded') throw buildOverLimitRefusal(allowed, claimed);
    const isWon = claimed.kind === 'registered' || claimed.kind === 'held';
    if (isWon && guards?.exposure !== undefined) ctx.taintCache.add(guards.exposure.scopes);
    return claimed;
  } finally {
    claimSpan.end();
  }
}

function buildNewCall(ctx: Context, prepared: PreparedCall, payload: Payload, owner: string): NewCall {
  const { allowed, identified, heldMs, votes } = prepared;
  const { call, policies, decision } = allowed;
  const { toolCall, fingerprint } = call;
  const { tool, rule } = decision;
  const { txn } = identified;
  const isHeld = heldMs !== undefined;
  const stored = encodePayload(ctx.sealingKey, txn, tool, payload, call.args);
  const record = createCallRecord({
    txn,
    agent: toolCall.agent.name,
    tool: tool.name,
    key: identified.key,
    identity: identified.identity,
    fingerprint,
    kind: tool.effect === 'read' ? 'read' : tool.once.by,
    fence: randomInt(1, 1_000_000_000),
    state: isHeld ? 'held' : tool.observe === undefined ? 'sending' : 'ready',
    owner: isHeld ? null : owner,
    keyLifetimeMs: tool.once.by === 'key' ? tool.once.lifetimeMs : null,
    policyVersion: policies.version,
    rule: rule.id,
    args: stored.args,
    request: stored.request,
    sealed: stored.sealed,
    saga: toolCall.saga ?? null,
    dependsOn: toolCall.dependsOn ?? null,
    run: toolCall.runEpoch?.run ?? null,
    epoch: toolCall.runEpoch?.epoch ?? null,
    undo: tool.effect === 'read' ? null : buildStoredUndo(ctx, txn, tool, toolCall),
    undoOf: null,
  });
  return {
    record,
    dueInMs: heldMs ?? null,
    undoTries: null,
    entry: buildAuditEntry(isHeld ? 'call_held' : 'call_claimed', {
      txn,
      agent: toolCall.agent.name,
      tool: tool.name,
      fingerprint: fingerprint.toString('hex'),
      policy: policies.version,
      rule: rule.id,
      saga: toolCall.saga,
      run: toolCall.runEpoch?.run,
      epoch: toolCall.runEpoch?.epoch,
      votes: votes.length === 0 ? undefined : renderVotes(votes),
    }),
  };
}
