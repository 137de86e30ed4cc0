import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { NotCanonicalError } from '../../domain/canonical.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import { ExpressionError } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { parseResult, redactAnswer } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { encodeObservation, prepareUndoArguments } from '../sagas/undo.ts';
import { readEvidence } from './evidence-read.ts';
import type { Job } from './job.ts';

/** What the world is like: as asked, or not; or it could not be seen. */
export type Observation =
  | { readonly satisfied: boolean; readonly answer: UpstreamAnswer }
  | { readonly satisfied: undefined; readonly detail: string };

interface ObservedState {
  readonly satisfied: boolean;
  /** As it may be stored and told. */
  readonly answer: UpstreamAnswer;
  /** As it is. */
  readonly world: Json;
  readonly isSecret: boolean;
}

const ABSENT_ANSWER: UpstreamAnswer = { status: 200, contentType: 'application/json', body: null, encoding: 'utf8' };

/** Looks before the first attempt. What is seen is kept with the call: its undo may have to put it back. */
export async function observeBeforeSend(station: Context, job: Job): Promise<Observation> {
  const seen = await readObservedState(station, job);
  if (typeof seen === 'string') return { satisfied: undefined, detail: seen };
  try {
    job.undoArguments = encodeObservation(station.sealingKey, job.txn, seen.world, seen.isSecret);
  } catch (error) {
    // What cannot be kept exactly could not be put back.
    if (error instanceof NotCanonicalError)
      return { satisfied: undefined, detail: `it cannot be kept: ${error.message}` };
    throw error;
  }
  job.before = seen.world;
  return seen;
}

/** Looks again, at a call in doubt. What was seen before it was sent stays: its undo puts that back. */
export async function observeInDoubt(station: Context, job: Job): Promise<Observation> {
  const seen = await readObservedState(station, job);
  if (typeof seen === 'string') return { satisfied: undefined, detail: seen };
  if (seen.satisfied) job.undoArguments = prepareUndoArguments(station, job, () => seen.world);
  return seen;
}

/** What is there now, or why it cannot be told. */
async function readObservedState(station: Context, job: Job): Promise<ObservedState | string> {
  const wish = job.tool.observe;
  if (wish === undefined) return 'the tool no longer observes anything';
  const looked = await readEvidence(station, job, wish.tool, () => wish.args({ args: job.args, agent: job.agent }));
  // Not there is an observation too: it is then null.
  if ('detail' in looked && !looked.isAbsent) return looked.detail;
  try {
    const world = 'detail' in looked ? null : parseResult(looked.answer);
    const satisfied = wish.satisfied({ args: job.args, observed: world });
    const isSecret = job.tool.redact.length > 0 || ('look' in looked && looked.look.redact.length > 0);
    if ('detail' in looked) return { satisfied, answer: ABSENT_ANSWER, world, isSecret };
    const shown = redactAnswer(looked.look, looked.answer, looked.args as JsonObject);
    return { satisfied, answer: redactAnswer(job.tool, shown, job.args, job.secrets), world, isSecret };
  } catch (error) {
    if (error instanceof ExpressionError) return error.message;
    throw error;
  }
}

/** More than this of what was seen is not kept for people. */
const MAX_SHOWN_CHARS = 2_000;

/** What was seen of the world, for whoever has to resolve a doubt. */
export function truncateForPerson({ body }: UpstreamAnswer): string | null {
  if (body === null || body.length <= MAX_SHOWN_CHARS) return body;
  return `${sanitize(body, MAX_SHOWN_CHARS)}…`;
}
