import { buildAuditEntry, hashLeaf } from '../../domain/audit/audit.ts';
import type { Call } from '../../domain/calls/call.ts';
import type { ErrorCode } from '../../domain/errors.ts';
import { endHeldCall } from '../../ledger/approvals/approvals.ts';
import { listOwnedCalls, orphanCall, postponeCall, takeOverCalls } from '../../ledger/calls/call-ownership.ts';
import type { CallUpdate } from '../../ledger/calls/calls.ts';
import { releaseDelayed } from '../../ledger/calls/delays.ts';
import { endDeadProcessesOnHost } from '../../ledger/process-lease.ts';
import type { Claims } from '../calls/claims.ts';
import { decodePayload } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { findSendBlock } from '../controls/freezes-and-breakers.ts';
import { Poller } from '../poller.ts';
import { decodeObservation } from '../sagas/undo.ts';
import type { Dispatch } from './dispatch.ts';
import { resumeJob } from './job.ts';
import { buildBaseUpdate } from './record.ts';

const POLL_INTERVAL_MS = 400;
/** A call that is due but frozen is looked at again this much later. */
const FROZEN_RECHECK_MS = 1_000;
/** How often this process looks for calls in its name that it does not carry. */
const ORPHAN_CHECK_MS = 3_000;
/** More than this is not taken at once: other replicas help, and an upstream that just came back is not flooded. */
const MAX_IN_FLIGHT = 512;

/**
 * The worker that picks up what others left: calls of dead owners, calls whose time has come. It has no way of its own to
 * an upstream; it finds out what is known and lets `dispatch` carry the call on. A crash in here: somebody does it again.
 */
export class Recovery {
  readonly #ctx: Context;
  readonly #dispatch: Dispatch;
  readonly #claims: Claims;
  readonly #poller: Poller;
  #orphans: ReadonlySet<string> = new Set();
  #nextOrphanCheckAt = 0;

  constructor(station: Context, dispatch: Dispatch, claims: Claims) {
    this.#ctx = station;
    this.#dispatch = dispatch;
    this.#claims = claims;
    this.#poller = new Poller('recovery', POLL_INTERVAL_MS, () => this.#poll(), station.log);
  }

  start(): void {
    this.#poller.start();
  }

  /** Looks now, unless a look is under way. */
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
      if (this.#poller.stopped || !this.#ctx.switches.canSend(owner)) return;
      const calls = await takeOverCalls(this.#ctx.db, owner, (txn) =>
        buildAuditEntry('call_taken_over', { txn, owner }),
      );
      if (calls.length === 0) return;
      this.#ctx.reach('taken');
      for (const call of calls) {
        // If this fails the call is still ours in the ledger, and is found again as a stray.
        this.#resume(call, owner).catch((error: unknown) => {
          this.#ctx.log.warn({ txn: call.txn, err: String(error) }, 'recovery could not go on with a call');
        });
      }
      await this.#dispatch.awaitCapacity(MAX_IN_FLIGHT);
    }
  }

  /**
   * Calls in this process's name that it does not carry: a write failed after they were taken over, or a late commit
   * brought them. Nobody else looks at them while this process lives, so those that are seen twice are given to whoever
   * looks next; an attempt that is open is then closed as unknown.
   */
  async #releaseOrphans(): Promise<void> {
    if (performance.now() < this.#nextOrphanCheckAt) return;
    this.#nextOrphanCheckAt = performance.now() + ORPHAN_CHECK_MS;
    const { db, lease, log } = this.#ctx;
    const owner = lease.id;
    const idle = (await listOwnedCalls(db, owner)).filter(
      (txn) => this.#dispatch.inFlight(txn) === undefined && !this.#claims.isClaimPending(txn),
    );
    for (const txn of idle.filter((stray) => this.#orphans.has(stray))) {
      log.warn({ txn }, 'a call was in the name of this process, which did not carry it; it is looked at again');
      await orphanCall(db, txn, owner);
    }
    this.#orphans = new Set(idle);
  }

  async #resume(call: Call, owner: string): Promise<void> {
    const { db, sealingKey } = this.#ctx;
    if (call.state === 'held' && call.hold?.kind !== 'delay') {
      const entry = buildAuditEntry('call_expired', { txn: call.txn, agent: call.agent, tool: call.tool });
      await endHeldCall(db, call.txn, 'expired', 'nobody answered in time', entry);
      return;
    }
    // What is delayed stays so while it is frozen, and can still be stopped.
    if (findSendBlock(this.#ctx, { ...call, tool: { name: call.tool } }) !== undefined)
      return postponeCall(db, call.txn, owner, FROZEN_RECHECK_MS);
    if (call.state === 'held') {
      const entry = buildAuditEntry('call_unopposed', { txn: call.txn, agent: call.agent, tool: call.tool });
      if (await releaseDelayed(db, call.txn, entry)) this.wake();
      return;
    }
    const tool = this.#ctx.policies().tools.get(call.tool);
    const payload = decodePayload(sealingKey, call);
    if (tool === undefined) return this.#parkOrFail(call, `the tool ${call.tool} is no longer declared`);
    if (typeof payload === 'string') return this.#parkOrFail(call, payload);
    void this.#dispatch.start(resumeJob(call, tool, payload, decodeObservation(sealingKey, call), owner));
  }

  /** It cannot be carried on; if nothing was sent it ends here, else only a person can tell. */
  #parkOrFail(call: Call, why: string): Promise<void> {
    if (call.attempt === 0) return this.#fail(call, 'unavailable', why);
    return this.#update(call, {
      state: 'in_doubt',
      custody: 'park',
      detail: why,
      event: { at: new Date().toISOString(), what: 'in_doubt', why },
      entry: buildAuditEntry('call_in_doubt', { txn: call.txn, agent: call.agent, tool: call.tool, why }),
    });
  }

  #fail(call: Call, problem: ErrorCode, why: string): Promise<void> {
    const entry = buildAuditEntry('call_failed', { txn: call.txn, agent: call.agent, tool: call.tool, why });
    return this.#update(call, {
      state: 'failed',
      custody: 'close',
      detail: why,
      outcome: 'no_effect',
      problem,
      evidence: 'gateway',
      leaf: hashLeaf(entry),
      entry,
    });
  }

  async #update(
    call: Call,
    change: Partial<CallUpdate> & Pick<CallUpdate, 'state' | 'custody' | 'entry'>,
  ): Promise<void> {
    await this.#ctx.calls.update({ ...buildBaseUpdate({ ...call, attemptOpen: false }), ...change });
  }
}
