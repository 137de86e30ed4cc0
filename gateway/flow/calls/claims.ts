import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { GatewayError, LedgerError } from '../../domain/errors.ts';
import { isOwnedBy, releaseClaim } from '../../ledger/calls/call-ownership.ts';
import { CLAIM_TAKEN, type ClaimGuards, type ClaimResult, type Intent } from '../../ledger/calls/calls.ts';
import type { Dispatch } from '../attempts/dispatch.ts';
import type { Context } from '../context.ts';

/** A statement that PostgreSQL still had in hand when we gave up on it can commit this much later, and no more. */
const MAX_LATE_COMMIT_MS = 60_000;

interface UnconfirmedClaim {
  readonly txn: string;
  /** Null: it was to be held. That one too may leave by itself one day, and nobody would know of it. */
  readonly owner: string | null;
  readonly fence: number;
  readonly since: number;
  /** The ledger was asked at least once and did not have it: a new claim may be tried. */
  looked: boolean;
}

/**
 * T1, and what becomes of a T1 whose commit is unknown: it is never sent; it is looked for until it cannot turn up any
 * more, and unbound where it does. A crash before that leaves a `sending` call without an owner, as after any claim.
 */
export class Claims {
  readonly #ctx: Context;
  readonly #dispatch: Dispatch;
  readonly #claiming = new Map<string, Promise<boolean>>();
  readonly #unconfirmed = new Map<string, UnconfirmedClaim>();

  constructor(station: Context, dispatch: Dispatch) {
    this.#ctx = station;
    this.#dispatch = dispatch;
  }

  /** `won` is ours to send: `then` runs before anybody else may look at the claim, and gets the token of its locks. */
  async claim(
    intent: Intent,
    guards: ClaimGuards | undefined,
    onWon: (lockToken: number | null) => void,
  ): Promise<ClaimResult> {
    const { txn } = intent;
    // Whoever comes while another claims the same txn must wait: before that commits, the call cannot be read either. If it
    // fails, so does this one: to try in turn on a dead ledger would keep the last of them waiting for ever.
    for (let other = this.#claiming.get(txn); other !== undefined; other = this.#claiming.get(txn)) {
      if (!(await other)) throw buildLedgerUnwritableError(txn);
    }
    if (this.#unconfirmed.get(txn)?.looked === false) throw buildLedgerUnwritableError(txn);
    if (this.#dispatch.inFlight(txn) !== undefined) return CLAIM_TAKEN;
    let written = (_: boolean) => {};
    this.#claiming.set(txn, new Promise<boolean>((resolve) => (written = resolve)));
    let isWritable = true;
    try {
      const claimed = await this.#ctx.calls.claim(intent, guards);
      if (claimed.kind === 'won') onWon(claimed.lockToken);
      return claimed;
    } catch (error) {
      // It was refused and nothing is wrong with the ledger: whoever waits is refused, or not, in turn.
      if (!(error instanceof LedgerError)) throw error;
      isWritable = false;
      if (error.isCommitUnknown) {
        this.#unconfirmed.set(txn, {
          txn,
          owner: intent.owner,
          fence: intent.fence,
          since: performance.now(),
          looked: false,
        });
      }
      this.#ctx.log.warn({ txn, err: error.message }, 'a call could not be claimed; nothing was sent');
      throw buildLedgerUnwritableError(txn);
    } finally {
      this.#claiming.delete(txn);
      written(isWritable);
    }
  }

  /** Whether a claim of this txn is under way, or one is looked for. */
  isClaimPending(txn: string): boolean {
    return this.#claiming.has(txn) || this.#unconfirmed.has(txn);
  }

  /** Looks for doubtful claims. Cheap when there are none. */
  async releaseUnconfirmed(): Promise<void> {
    for (const [txn, claim] of this.#unconfirmed) {
      if (this.#claiming.has(txn) || this.#dispatch.inFlight(txn) !== undefined) continue;
      if (await isOwnedBy(this.#ctx.db, txn, claim.owner)) {
        if (this.#claiming.has(txn) || this.#dispatch.inFlight(txn) !== undefined) continue;
        const entry = buildAuditEntry('call_released', { txn, detail: 'the claim could not be confirmed in time' });
        await releaseClaim(this.#ctx.db, claim, entry);
        this.#unconfirmed.delete(txn);
      } else if (performance.now() - claim.since > MAX_LATE_COMMIT_MS) {
        this.#unconfirmed.delete(txn);
      } else {
        claim.looked = true;
      }
    }
  }
}

function buildLedgerUnwritableError(txn: string): GatewayError {
  const detail = 'The ledger cannot be written, so nothing was sent. Try again with the same key.';
  return new GatewayError('unavailable', detail, { txn, retryAfterSeconds: 1 });
}
