import type { Settlement } from '../../domain/attempts/settlement.ts';
import { buildAuditEntry, hashLeaf } from '../../domain/audit/audit.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
import { endHeldCall } from '../../ledger/approvals/approvals.ts';
import { listOwnedCalls, orphanCall, postponeCall, takeOverCalls } from '../../ledger/calls/call-ownership.ts';
import { releaseDelayed } from '../../ledger/calls/delays.ts';
import { endDeadProcessesOnHost } from '../../ledger/process-lease.ts';
import type { Claims } from '../calls/claims.ts';
import { decodePayload } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { findSendBlock } from '../controls/freezes-and-breakers.ts';
import { Poller } from '../poller.ts';
import { decodeObservation } from '../sagas/undo.ts';
import { buildOpenCallPatch, buildSettlementPatch } from './build-patches.ts';
import type { Dispatch } from './dispatch.ts';
import { resumeInFlightCall } from './in-flight-call.ts';

const POLL_INTERVAL_MS = 400;
/** How soon a due but frozen call is tried again. */
const FROZEN_RECHECK_MS = 1_000;
/** How often this process looks for calls that it owns but that are not in flight. */
const ORPHAN_CHECK_MS = 3_000;
/** Recovery pauses at this many calls in flight. Other replicas then share the work, and a returning upstream is not flooded. */
const MAX_IN_FLIGHT = 512;

/**
 * Takes over the calls of dead owners and the calls that are due. Recovery sends nothing itself: it reads the stored state and
 * hands the call to `Dispatch`. After a crash here, another process takes the calls over.
 */
export class Recovery {
  readonly #ctx: Context;
  readonly #dispatch: Dispatch;
  readonly #claims: Claims;
  readonly #poller: Poller;
  #orphans: ReadonlySet<string> = new Set();
  #nextOrphanCheckAt = 0;

  constructor(ctx: Context, dispatch: Dispatch, claims: Claims) {
    this.#ctx = ctx;
    this.#dispatch = dispatch;
    this.#claims = claims;
    this.#poller = new Poller('recovery', POLL_INTERVAL_MS, () => this.#poll(), ctx.log);
  }

  start(): void {
    this.#poller.start();
  }

  /** Polls now, unless a poll is running. */
  wake(): void {
    this.#poller.wake();
  }

  stop(): Promise<void> {
    return this.#poller.stop();
  }

  async #poll(): Promise<void> {
    await endDeadProcessesOnHost(this.#ctx.db, this.#ctx.lease.id);
    await this.#claims.releaseUnconfirmed();
    await this.#releaseOrphans();
    for (;;) {
      const owner = this.#ctx.lease.id;
      if (this.#poller.isStopped || !this.#ctx.controlFlags.canSend(owner)) return;
      const calls = await takeOverCalls(this.#ctx.db, owner, (txn) =>
        buildAuditEntry('call_taken_over', { txn, owner }),
      );
      if (calls.length === 0) return;
      this.#ctx.reachKillPoint('taken');
      for (const call of calls) {
        // If this fails, the ledger still has this process as the owner. `#releaseOrphans` releases the call.
        this.#resume(call, owner).catch((error: unknown) => {
          this.#ctx.log.warn(
            { txn: call.txn, err: String(error) },
            'Recovery could not resume a call. It is taken over again later.',
          );
        });
      }
      await this.#dispatch.awaitCapacity(MAX_IN_FLIGHT);
    }
  }

  /**
   * Releases calls that this process owns but that are not in flight: a write failed after the takeover, or a claim
   * committed late. Other processes ignore them while this one lives. A call that is found twice is released for the next
   * takeover, which closes an open attempt as unknown.
   */
  async #releaseOrphans(): Promise<void> {
    if (performance.now() < this.#nextOrphanCheckAt) return;
    this.#nextOrphanCheckAt = performance.now() + ORPHAN_CHECK_MS;
    const { db, lease, log } = this.#ctx;
    const owner = lease.id;
    const idle = (await listOwnedCalls(db, owner)).filter(
      (txn) => this.#dispatch.findInFlight(txn) === undefined && !this.#claims.isClaimPending(txn),
    );
    for (const txn of idle.filter((candidate) => this.#orphans.has(candidate))) {
      log.warn({ txn }, 'This process owned a call that was not in flight. The call is released for recovery.');
      await orphanCall(db, txn, owner);
    }
    this.#orphans = new Set(idle);
  }

  async #resume(call: CallRecord, owner: string): Promise<void> {
    const { db, sealingKey } = this.#ctx;
    if (call.state === 'held' && call.hold?.kind !== 'delay') {
      const entry = buildAuditEntry('call_expired', { txn: call.txn, agent: call.agent, tool: call.tool });
      await endHeldCall(db, call.txn, 'expired', 'nobody answered in time', entry);
      return;
    }
    // A frozen call is tried again later. A delayed call stays held meanwhile, so that a person can still stop it.
    if (findSendBlock(this.#ctx, call) !== undefined) return postponeCall(db, call.txn, owner, FROZEN_RECHECK_MS);
    if (call.state === 'held') {
      const entry = buildAuditEntry('call_unopposed', { txn: call.txn, agent: call.agent, tool: call.tool });
      if (await releaseDelayed(db, call.txn, entry)) this.wake();
      return;
    }
    const tool = this.#ctx.policies().tools.get(call.tool);
    const payload = decodePayload(sealingKey, call);
    if (tool === undefined) return this.#parkOrFail(call, `the tool ${call.tool} is no longer declared`);
    if (typeof payload === 'string') return this.#parkOrFail(call, payload);
    const inFlight = resumeInFlightCall(call, owner, tool, payload, decodeObservation(sealingKey, call));
    void this.#dispatch.start(this.#dispatch.register(inFlight));
  }

  /** The call cannot continue. It fails if nothing was sent; otherwise a person must resolve it. */
  async #parkOrFail(call: CallRecord, why: string): Promise<void> {
    const { calls } = this.#ctx;
    const { txn, agent, tool } = call;
    const isUnsent = call.attempt === 0;
    const entry = buildAuditEntry(isUnsent ? 'call_failed' : 'call_in_doubt', { txn, agent, tool, why });
    if (isUnsent) {
      const written = { detail: why, answer: null, leaf: hashLeaf(entry), undo: null, entry };
      await calls.settle(buildSettlementPatch(call, null, UNAVAILABLE, written));
    } else {
      const event = { at: new Date().toISOString(), what: 'in_doubt', why };
      const doubt = { state: 'in_doubt', parked: { dueInMs: null }, detail: why, event, entry } as const;
      await calls.update(buildOpenCallPatch(call, null, doubt));
    }
  }
}

/** Nothing was sent, and nothing can be sent. */
const UNAVAILABLE: Settlement = { state: 'failed', outcome: 'no_effect', evidence: 'gateway', problem: 'unavailable' };
