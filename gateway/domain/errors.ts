import type { Json } from './json.ts';

/** Whether a client should repeat the request: never, with the same key, with a new key, or after `Retry-After`. */
export type RetryAdvice = 'never' | 'same_key' | 'new_key' | 'after_delay';

interface ErrorSpec {
  readonly status: number;
  readonly title: string;
  readonly retry: RetryAdvice;
}

/** Every error that a client can see. A test compares docs/reference/errors.md with this table. */
export const ERRORS = {
  malformed: { status: 400, title: 'The request is malformed', retry: 'never' },
  invalid_arguments: { status: 400, title: "The arguments do not match the tool's schema", retry: 'never' },
  unauthenticated: { status: 401, title: 'A valid bearer key is needed', retry: 'never' },
  denied: { status: 403, title: 'Policy does not allow this call', retry: 'never' },
  forbidden: { status: 403, title: 'Your role does not allow this', retry: 'never' },
  not_found: { status: 404, title: 'The resource does not exist', retry: 'never' },
  unknown_tool: { status: 404, title: 'There is no such tool', retry: 'never' },
  in_progress: { status: 409, title: 'The call is still under way', retry: 'same_key' },
  fenced: { status: 409, title: 'The epoch is not current', retry: 'never' },
  locked: { status: 409, title: 'A resource is held by another call', retry: 'after_delay' },
  saga_closed: { status: 409, title: 'The saga takes no more steps', retry: 'never' },
  conflict: { status: 409, title: 'The current state does not allow this', retry: 'never' },
  key_expired: { status: 410, title: 'The key is past retention', retry: 'new_key' },
  too_large: { status: 413, title: 'The request is too large', retry: 'never' },
  unsupported_media: { status: 415, title: 'The body must be application/json', retry: 'never' },
  key_reused: { status: 422, title: 'The key was used for another request', retry: 'new_key' },
  rejected: { status: 422, title: 'A person rejected the call', retry: 'new_key' },
  expired: { status: 422, title: 'Nobody decided in time', retry: 'new_key' },
  cancelled: { status: 422, title: 'The call was withdrawn', retry: 'new_key' },
  rate_limited: { status: 429, title: 'Too many calls', retry: 'after_delay' },
  over_budget: { status: 429, title: 'The budget is used up', retry: 'after_delay' },
  internal: { status: 500, title: 'The gateway failed', retry: 'same_key' },
  tool_failed: { status: 502, title: 'The tool answered, and nothing happened', retry: 'new_key' },
  breaker_open: { status: 503, title: 'The circuit breaker is open', retry: 'after_delay' },
  unavailable: { status: 503, title: 'Nothing could be sent', retry: 'after_delay' },
  frozen: { status: 503, title: 'Calls are frozen', retry: 'after_delay' },
  in_doubt: { status: 504, title: 'The call may or may not have happened', retry: 'same_key' },
} as const satisfies Record<string, ErrorSpec>;

export type ErrorCode = keyof typeof ERRORS;

/** Optional members of the problem object that a client gets. */
export interface ErrorExtras {
  readonly txn?: string;
  readonly state?: string;
  readonly retry?: RetryAdvice;
  readonly retryAfterSeconds?: number;
  /** Further members of the problem object, such as `faults` or `upstream`. */
  readonly members?: Readonly<Record<string, Json>>;
}

/** The only error that the gateway sends deliberately. Any other error is a bug and is answered as `internal`. */
export class GatewayError extends Error {
  override readonly name = 'GatewayError';
  readonly code: ErrorCode;
  readonly extras: ErrorExtras;

  constructor(code: ErrorCode, detail: string, extras: ErrorExtras = {}) {
    super(detail);
    this.code = code;
    this.extras = extras;
  }
}

export interface LedgerErrorOptions {
  /** True: the statement may have committed although the gateway got an error. False: it certainly had no effect. */
  readonly isCommitUnknown: boolean;
  /** PostgreSQL is reachable and rejected this statement. */
  readonly isRejected?: boolean;
  /** Every retry would be rejected too, because the values cannot be stored. */
  readonly isPermanent?: boolean;
  readonly cause?: unknown;
}

/** A statement of the ledger failed. The options tell what the caller may conclude and whether a retry can help. */
export class LedgerError extends Error {
  override readonly name = 'LedgerError';
  readonly isCommitUnknown: boolean;
  readonly isRejected: boolean;
  readonly isPermanent: boolean;

  constructor(message: string, options: LedgerErrorOptions) {
    super(message, { cause: options.cause });
    this.isCommitUnknown = options.isCommitUnknown;
    this.isRejected = options.isRejected ?? false;
    this.isPermanent = options.isPermanent ?? false;
  }
}
