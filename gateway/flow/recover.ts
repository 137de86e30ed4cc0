import { auditEntry, leafHash } from '../domain/audit.ts';
import type { Call } from '../domain/call.ts';
import type { ErrorCode } from '../domain/errors.ts';
import { endHeld } from '../ledger/approvals.ts';
import type { Advance } from '../ledger/calls.ts';
import { disown, ownedCalls, postpone, takeOver } from '../ledger/custody.ts';
import { letGo } from '../ledger/delays.ts';
import { endDeadNeighbours } from '../ledger/processes.ts';
import type { Claims } from './claims.ts';
import type { Dispatch } from './dispatch.ts';
import { jobOf } from './job.ts';
import { Lookout } from './lookout.ts';
import { load } from './payload.ts';
import { unchanged } from './record.ts';
import type { Station } from './station.ts';
import { frozenFor } from './switching.ts';
import { beforeOf } from './undo.ts';

const LOOK_EVERY_MS = 400;
/** A call that is due but frozen is looked at again this much later. */
const FROZEN_RECHECK_MS = 1_000;
/** How often this process looks for calls in its name that it does not carry. */
const STRAY_LOOK_MS = 3_000;
/** More than this is not taken at once: other replicas help, and an upstream that just came back is not flooded. */
const MOST_CARRIED = 512;

/**
 * The worker that picks up what others left: calls of dead owners, calls whose time has come. It has no way of its own to
 * an upstream; it finds out what is known and lets `dispatch` carry the call on. A crash in here: somebody does it again.
 */
export class Recovery {
  readonly #station: Station;
  readonly #dispatch: Dispatch;
  readonly #claims: Claims;
  readonly #lookout: Lookout;
  #strays: ReadonlySet<string> = new Set();
  #strayLookAt = 0;

  constructor(station: Station, dispatch: Dispatch, claims: Claims) {
    this.#station = station;
    this.#dispatch = dispatch;
    this.#claims = claims;
    this.#lookout = new Lookout('recovery', LOOK_EVERY_MS, () => this.#look(), station.log);
  }

  start(): void {
    this.#lookout.start();
  }

  /** Looks now, unless a look is under way. */
  wake(): void {
    this.#lookout.wake();
  }

  stop(): Promise<void> {
    return this.#lookout.stop();
  }

  async #look(): Promise<void> {
    await endDeadNeighbours(this.#station.db, this.#station.lease.id);
    await this.#claims.sweep();
    await this.#sendStraysHome();
    for (;;) {
      const owner = this.#station.lease.id;
      if (this.#lookout.stopped || !this.#station.switches.inForce(owner)) return;
      const calls = await takeOver(this.#station.db, owner, (txn) => auditEntry('call_taken_over', { txn, owner }));
      if (calls.length === 0) return;
      this.#station.reach('taken');
      for (const call of calls) {
        // If this fails the call is still ours in the ledger, and is found again as a stray.
        this.#carry(call, owner).catch((error: unknown) => {
          this.#station.log.warn({ txn: call.txn, err: String(error) }, 'recovery could not go on with a call');
        });
      }
      await this.#dispatch.roomFor(MOST_CARRIED);
    }
  }

  /**
   * Calls in this process's name that it does not carry: a write failed after they were taken over, or a late commit
   * brought them. Nobody else looks at them while this process lives, so those that are seen twice are given to whoever
   * looks next; an attempt that is open is then closed as unknown.
   */
  async #sendStraysHome(): Promise<void> {
    if (performance.now() < this.#strayLookAt) return;
    this.#strayLookAt = performance.now() + STRAY_LOOK_MS;
    const { db, lease, log } = this.#station;
    const owner = lease.id;
    const idle = (await ownedCalls(db, owner)).filter(
      (txn) => this.#dispatch.carried(txn) === undefined && !this.#claims.isAt(txn),
    );
    for (const txn of idle.filter((stray) => this.#strays.has(stray))) {
      log.warn({ txn }, 'a call was in the name of this process, which did not carry it; it is looked at again');
      await disown(db, txn, owner);
    }
    this.#strays = new Set(idle);
  }

  async #carry(call: Call, owner: string): Promise<void> {
    const { db, sealingKey } = this.#station;
    if (call.state === 'held' && call.hold?.kind !== 'delay') {
      const entry = auditEntry('call_expired', { txn: call.txn, agent: call.agent, tool: call.tool });
      await endHeld(db, call.txn, 'expired', 'nobody answered in time', entry);
      return;
    }
    // What is delayed stays so while it is frozen, and can still be stopped.
    if (frozenFor(this.#station, { ...call, tool: { name: call.tool } }) !== undefined)
      return postpone(db, call.txn, owner, FROZEN_RECHECK_MS);
    if (call.state === 'held') {
      const entry = auditEntry('call_unopposed', { txn: call.txn, agent: call.agent, tool: call.tool });
      if (await letGo(db, call.txn, entry)) this.wake();
      return;
    }
    const tool = this.#station.policies().tools.get(call.tool);
    const payload = load(sealingKey, call);
    if (tool === undefined) return this.#doubt(call, `the tool ${call.tool} is no longer declared`);
    if (typeof payload === 'string') return this.#doubt(call, payload);
    void this.#dispatch.carry(jobOf(call, tool, payload, beforeOf(sealingKey, call), owner));
  }

  /** It cannot be carried on; if nothing was sent it ends here, else only a person can tell. */
  #doubt(call: Call, why: string): Promise<void> {
    if (call.attempt === 0) return this.#fail(call, 'unavailable', why);
    return this.#advance(call, {
      state: 'in_doubt',
      custody: 'park',
      detail: why,
      event: { at: new Date().toISOString(), what: 'in_doubt', why },
      entry: auditEntry('call_in_doubt', { txn: call.txn, agent: call.agent, tool: call.tool, why }),
    });
  }

  #fail(call: Call, problem: ErrorCode, why: string): Promise<void> {
    const entry = auditEntry('call_failed', { txn: call.txn, agent: call.agent, tool: call.tool, why });
    return this.#advance(call, {
      state: 'failed',
      custody: 'close',
      detail: why,
      outcome: 'no_effect',
      problem,
      evidence: 'gateway',
      leaf: leafHash(entry),
      entry,
    });
  }

  async #advance(call: Call, change: Partial<Advance> & Pick<Advance, 'state' | 'custody' | 'entry'>): Promise<void> {
    await this.#station.calls.advance({ ...unchanged({ ...call, attemptOpen: false }), ...change });
  }
}
