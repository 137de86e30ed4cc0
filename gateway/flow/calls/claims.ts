import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { GatewayError, LedgerError } from '../../domain/errors.ts';
import { isOwnedBy, releaseClaim } from '../../ledger/calls/call-ownership.ts';
import { CLAIM_TAKEN, type ClaimGuards, type ClaimResult, type Intent } from '../../ledger/calls/calls.ts';
import type { Dispatch } from '../attempts/dispatch.ts';
import type { Context } from '../context.ts';

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

  /** Claims a call. `onWon` runs before any other request can see the claim, and gets the token of the call's locks. */
  async claim(
    intent: Intent,
    guards: ClaimGuards | undefined,
    onWon: (lockToken: number | null) => void,
  ): Promise<ClaimResult> {
    const { txn } = intent;
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
      const claimed = await this.#ctx.calls.claim(intent, guards);
      if (claimed.kind === 'won') onWon(claimed.lockToken);
      return claimed;
    } catch (error) {
      // Any other error is a refusal, and the ledger works. Requests that wait for this txn then try their own claim.
      if (!(error instanceof LedgerError)) throw error;
      isWritable = false;
      if (error.isCommitUnknown) {
        this.#unconfirmed.set(txn, {
          txn,
          owner: intent.owner,
          fence: intent.fence,
          sinceMs: performance.now(),
          wasLookedUp: false,
        });
      }
      this.#ctx.log.warn({ txn, err: error.message }, 'A call could not be claimed. Nothing was sent.');
      throw buildLedgerUnwritableError(txn);
    } finally {
      this.#claiming.delete(txn);
      resolveClaiming(isWritable);
    }
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
