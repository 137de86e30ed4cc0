import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { parseResult } from '../../domain/attempts/classify-answer.ts';
import { NotCanonicalError } from '../../domain/canonical.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import { ExpressionError } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { redactAnswer } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { encodeObservation, prepareUndoArguments } from '../sagas/undo.ts';
import type { InFlightCall } from './in-flight-call.ts';
import { type FailedRead, readEvidence } from './read-evidence.ts';

/** Whether the upstream is in the requested state; `failed` when it could not be observed. */
export type Observation = ObservedState | FailedRead;

export interface ObservedState {
  readonly kind: 'observed';
  readonly satisfied: boolean;
  /** The redacted answer, which may be stored and returned. */
  readonly answer: UpstreamAnswer;
  /** The observed state without redaction. */
  readonly state: Json;
  readonly isSecret: boolean;
}

const ABSENT_ANSWER: UpstreamAnswer = { status: 200, contentType: 'application/json', body: null, encoding: 'utf8' };

/** Observes before the first attempt. The observed state is kept with the call, because the undo may restore it. */
export async function observeBeforeSend(ctx: Context, call: InFlightCall): Promise<Observation> {
  const observed = await readObservedState(ctx, call);
  if (observed.kind === 'failed') return observed;
  try {
    call.undoArguments = encodeObservation(ctx.sealingKey, call.record.txn, observed.state, observed.isSecret);
  } catch (error) {
    // A state that cannot be stored exactly could not be restored.
    if (error instanceof NotCanonicalError)
      return { kind: 'failed', detail: `the observed state cannot be stored: ${error.message}` };
    throw error;
  }
  call.before = observed.state;
  return observed;
}

/** Observes again when a call is in doubt. Keeps the state from before the first attempt, which the undo restores. */
export async function observeInDoubt(ctx: Context, call: InFlightCall): Promise<Observation> {
  const observed = await readObservedState(ctx, call);
  if (observed.kind === 'observed' && observed.satisfied)
    call.undoArguments = prepareUndoArguments(ctx, call, () => observed.state);
  return observed;
}

async function readObservedState(ctx: Context, call: InFlightCall): Promise<Observation> {
  const spec = call.tool.observe;
  if (spec === undefined) return { kind: 'failed', detail: 'the tool no longer declares an observation' };
  const read = await readEvidence(ctx, call, spec.tool, () =>
    spec.args({ args: call.payload.args, agent: call.record.agent }),
  );
  if (read.kind === 'failed') return read;
  try {
    // Absence is an observation too: the state is null.
    const state = read.kind === 'absent' ? null : parseResult(read.answer);
    const satisfied = spec.satisfied({ args: call.payload.args, observed: state });
    const isSecret = call.tool.redact.length > 0 || (read.kind === 'read' && read.tool.redact.length > 0);
    if (read.kind === 'absent') return { kind: 'observed', satisfied, answer: ABSENT_ANSWER, state, isSecret };
    const shown = redactAnswer(read.tool, read.answer, read.args as JsonObject);
    const answer = redactAnswer(call.tool, shown, call.payload.args, call.payload.secrets);
    return { kind: 'observed', satisfied, answer, state, isSecret };
  } catch (error) {
    if (error instanceof ExpressionError) return { kind: 'failed', detail: error.message };
    throw error;
  }
}

/** How much of an observed state is kept for people. */
const MAX_SHOWN_CHARS = 2_000;

/** The observed state for the person who resolves a doubt. */
export function truncateForPerson({ body }: UpstreamAnswer): string | null {
  if (body === null || body.length <= MAX_SHOWN_CHARS) return body;
  return `${sanitize(body, MAX_SHOWN_CHARS)}…`;
}
