import { type AuditFields, buildAuditEntry } from '../../domain/audit/audit.ts';
import { type ErrorCode, type ErrorExtras, GatewayError } from '../../domain/errors.ts';
import { enqueueAuditEntry } from '../../ledger/audit/audit-queue.ts';
import type { Context } from '../context.ts';

/** The audit event of each refusal. A refused call leaves no row, so the audit log is its only record. */
const AUDIT_EVENT_BY_CODE: Partial<Readonly<Record<ErrorCode, string>>> = {
  denied: 'denied',
  unknown_tool: 'unknown_tool',
  fenced: 'fenced',
  locked: 'locked',
  rate_limited: 'rate_limited',
  over_budget: 'over_budget',
  // These codes are already the names of other audit events, such as a freeze by a person.
  frozen: 'refused',
  breaker_open: 'refused',
  saga_closed: 'refused',
  key_reused: 'refused',
  key_expired: 'refused',
  forbidden: 'refused',
};

/** A refusal with its own audit fields. It is logged even if `AUDIT_EVENT_BY_CODE` does not list its code. */
export class Refusal extends GatewayError {
  readonly auditFields: AuditFields;

  constructor(
    { code, message, extras }: { code: ErrorCode; message: string; extras?: ErrorExtras },
    auditFields: AuditFields,
  ) {
    super(code, message, extras);
    this.auditFields = auditFields;
  }
}

/** The call was claimed and released without a send. The release is in the audit log already. */
export class ReleasedError extends GatewayError {}

/** Runs work and logs its refusal. If the refusal cannot be logged, the caller gets the ledger error instead. */
export async function logIfRefused<T>(ctx: Context, subject: AuditFields, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await logRefusal(ctx, subject, error);
    throw error;
  }
}

/** Whether an error is a decision against a call, and not a malformed request or a failure of the gateway. */
export function isLoggedRefusal(error: GatewayError): boolean {
  return error instanceof Refusal || AUDIT_EVENT_BY_CODE[error.code] !== undefined;
}

/** Logs a refusal. Ignores any other error. */
export async function logRefusal(ctx: Context, subject: AuditFields, error: unknown): Promise<void> {
  if (!(error instanceof GatewayError) || error instanceof ReleasedError || !isLoggedRefusal(error)) return;
  const { code, message, extras } = error;
  const event = AUDIT_EVENT_BY_CODE[code] ?? 'refused';
  const reasons = error instanceof Refusal ? error.auditFields : { reason: message };
  const fields = { txn: extras.txn, ...subject, policy: ctx.policies().version, ...reasons };
  await enqueueAuditEntry(ctx.db, buildAuditEntry(event, event === code ? fields : { ...fields, code }));
}
