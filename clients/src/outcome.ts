/** An error as the gateway tells it (RFC 9457). */
export interface Problem {
  readonly code: string;
  readonly title: string;
  readonly detail: string;
  readonly status: number;
  /** What helps: `never`, `same_key`, `new_key`, `after_delay`. */
  readonly retry?: string;
  readonly txn?: string;
  readonly [more: string]: unknown;
}

/** What came of a call. Of the three that are not `done`, only `refused` says that nothing happened. */
export type CallOutcome =
  | { readonly kind: 'done'; readonly txn: string; readonly result: unknown; readonly replayed: boolean }
  /** Waits for a person or for its time (`leavesAt`), or is still on its way; it goes on without us. */
  | { readonly kind: 'pending'; readonly txn: string; readonly state: string; readonly leavesAt?: string }
  /** It may or may not have happened. `problem` is absent when not even the gateway could be reached. */
  | { readonly kind: 'unknown'; readonly txn?: string; readonly problem?: Problem; readonly key: string }
  | { readonly kind: 'refused'; readonly problem: Problem };

/** Thrown instead of being told to the model, where that was asked for. */
export class OncegateError extends Error {
  override readonly name = 'OncegateError';
  readonly outcome: Exclude<CallOutcome, { kind: 'done' }>;

  constructor(outcome: Exclude<CallOutcome, { kind: 'done' }>) {
    super(explainOutcome(outcome));
    this.outcome = outcome;
  }
}

/** An outcome as a model can act on it. What it must not do is said outright: models like to try again. */
export function explainOutcome(outcome: Exclude<CallOutcome, { kind: 'done' }>): string {
  switch (outcome.kind) {
    case 'pending':
      if (outcome.leavesAt !== undefined)
        return `Delayed (${outcome.txn}): it has not happened yet, and runs by itself at ${outcome.leavesAt} unless somebody stops it. Do not call the tool again for the same purpose; tell the user that it can still be stopped.`;
      return outcome.state === 'held'
        ? `Held: a person has to approve this call (${outcome.txn}). It has not happened yet, and runs by itself once approved. Do not call the tool again for the same purpose; tell the user that it waits for approval.`
        : `Still running (${outcome.txn}): it goes on by itself and may yet succeed. Do not call the tool again for the same purpose.`;
    case 'unknown':
      return `In doubt${outcome.txn === undefined ? '' : ` (${outcome.txn})`}: it may or may not have happened${outcome.problem === undefined ? ', the gateway did not answer' : ''}. Do not call the tool again for the same purpose: that could do it twice. Tell the user that it has to be looked into.`;
    case 'refused': {
      const { title, detail, code, retry } = outcome.problem;
      const advice = retry === 'after_delay' ? ' It may be tried again later.' : '';
      return `Refused (${code}), nothing happened. ${title}: ${detail}${advice}`;
    }
  }
}
