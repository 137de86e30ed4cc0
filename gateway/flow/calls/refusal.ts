import { type AuditFields, buildAuditEntry } from '../../domain/audit/audit.ts';
import { type ErrorCode, type ErrorExtras, GatewayError } from '../../domain/errors.ts';
import { enqueueAuditEntry } from '../../ledger/audit/audit-queue.ts';
import type { Context } from '../context.ts';

/** Decisions against a call that leave no call behind: only the log knows of them. By what each is called there. */
const AUDIT_EVENT_BY_CODE: Partial<Readonly<Record<ErrorCode, string>>> = {
  denied: 'denied',
  unknown_tool: 'unknown_tool',
  fenced: 'fenced',
  locked: 'locked',
  rate_limited: 'rate_limited',
  over_budget: 'over_budget',
  // The names of these are taken: by a switch that was thrown, a breaker that opened, a saga that was closed.
  frozen: 'refused',
  breaker_open: 'refused',
  saga_closed: 'refused',
  key_reused: 'refused',
  key_expired: 'refused',
  forbidden: 'refused',
};

/** A refusal of which the log says something else than its detail, or that it would not know for one by its code. */
export class Refusal extends GatewayError {
  readonly noted: AuditFields;

  constructor(
    { code, message, extras }: { code: ErrorCode; message: string; extras?: ErrorExtras },
    noted: AuditFields,
  ) {
    super(code, message, extras);
    this.noted = noted;
  }
}

/** Not sent, though it was claimed. That it was released is in the log already. */
export class ReleasedError extends GatewayError {}

/** Work that may be refused, and then is so in the log too. What cannot be logged is not told as if it were. */
export async function logIfRefused<T>(station: Context, about: AuditFields, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await logRefusal(station, about, error);
    throw error;
  }
}

/** Whether an error is a decision against a call, and no fault of its words or of the gateway. */
export function isLoggedRefusal(error: GatewayError): boolean {
  return error instanceof Refusal || AUDIT_EVENT_BY_CODE[error.code] !== undefined;
}

/** Puts it into the log that a call was refused. Any other error is no decision, and leaves nothing. */
export async function logRefusal(station: Context, about: AuditFields, error: unknown): Promise<void> {
  if (!(error instanceof GatewayError) || error instanceof ReleasedError || !isLoggedRefusal(error)) return;
  const { code, message, extras } = error;
  const what = AUDIT_EVENT_BY_CODE[code] ?? 'refused';
  const noted = error instanceof Refusal ? error.noted : { reason: message };
  const fields = { txn: extras.txn, ...about, policy: station.policies().version, ...noted };
  await enqueueAuditEntry(station.db, buildAuditEntry(what, what === code ? fields : { ...fields, code }));
}
