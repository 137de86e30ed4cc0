/** An error of the gateway (RFC 9457). */
export interface Problem {
  readonly code: string;
  readonly title: string;
  readonly detail: string;
  readonly status: number;
  /** How a retry can help: `never`, `same_key`, `new_key`, `after_delay`. */
  readonly retry?: string;
  readonly txn?: string;
  readonly [more: string]: unknown;
}

/** The outcome of a call. Besides `done`, only `refused` is certain: nothing happened. */
export type CallOutcome =
  | { readonly kind: 'done'; readonly txn: string; readonly result: unknown; readonly replayed: boolean }
  /** The call waits for a person or its delay (`leavesAt`), or is being sent. It continues without this client. */
  | { readonly kind: 'pending'; readonly txn: string; readonly state: string; readonly leavesAt?: string }
  /** The call may or may not have had its effect. `problem` is absent if the gateway did not answer. */
  | { readonly kind: 'unknown'; readonly txn?: string; readonly problem?: Problem; readonly key: string }
  | { readonly kind: 'refused'; readonly problem: Problem };

/** Thrown for every outcome but `done`, with `errors: 'throw'`. */
export class OncegateError extends Error {
  override readonly name = 'OncegateError';
  readonly outcome: Exclude<CallOutcome, { kind: 'done' }>;

  constructor(outcome: Exclude<CallOutcome, { kind: 'done' }>) {
    super(explainOutcome(outcome));
    this.outcome = outcome;
  }
}

/** Describes an outcome to a model. Says explicitly not to call again, because models tend to retry. */
export function explainOutcome(outcome: Exclude<CallOutcome, { kind: 'done' }>): string {
  switch (outcome.kind) {
    case 'pending':
      if (outcome.leavesAt !== undefined)
        return `Delayed (${outcome.txn}): it has not happened yet, and runs by itself at ${outcome.leavesAt} unless a person stops it. Do not call the tool again for the same purpose; tell the user that it can still be stopped.`;
      return outcome.state === 'held'
        ? `Held: a person has to approve this call (${outcome.txn}). It has not happened yet, and runs by itself once approved. Do not call the tool again for the same purpose; tell the user that the call waits for approval.`
        : `Still running (${outcome.txn}): the call continues by itself and may still succeed. Do not call the tool again for the same purpose.`;
    case 'unknown':
      return `In doubt${outcome.txn === undefined ? '' : ` (${outcome.txn})`}: it may or may not have happened${outcome.problem === undefined ? ', the gateway did not answer' : ''}. Do not call the tool again for the same purpose: that could do it twice. Tell the user that a person has to check it.`;
    case 'refused': {
      const { title, detail, code, retry } = outcome.problem;
      const advice = retry === 'after_delay' ? ' You may try again later.' : '';
      return `Refused (${code}), nothing happened. ${title}: ${detail}${advice}`;
    }
  }
}
