import type { Answer } from '../domain/adapter.ts';
import { NotCanonical } from '../domain/canonical.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import { legible } from '../domain/legible.ts';
import { ExpressionError } from '../domain/policy.ts';
import type { Job } from './job.ts';
import { lookAt } from './look.ts';
import { redactAnswer, resultOf } from './payload.ts';
import type { Station } from './station.ts';
import { keepBefore, undoOf } from './undo.ts';

/** What the world is like: as asked, or not; or it could not be seen. */
export type Observed =
  | { readonly satisfied: boolean; readonly answer: Answer }
  | { readonly satisfied: undefined; readonly detail: string };

interface Seen {
  readonly satisfied: boolean;
  /** As it may be stored and told. */
  readonly answer: Answer;
  /** As it is. */
  readonly world: Json;
  readonly isSecret: boolean;
}

const NOTHING: Answer = { status: 200, contentType: 'application/json', body: null, encoding: 'utf8' };

/** Looks before the first attempt. What is seen is kept with the call: its undo may have to put it back. */
export async function observe(station: Station, job: Job): Promise<Observed> {
  const seen = await see(station, job);
  if (typeof seen === 'string') return { satisfied: undefined, detail: seen };
  try {
    job.undoArguments = keepBefore(station.sealingKey, job.txn, seen.world, seen.isSecret);
  } catch (error) {
    // What cannot be kept exactly could not be put back.
    if (error instanceof NotCanonical) return { satisfied: undefined, detail: `it cannot be kept: ${error.message}` };
    throw error;
  }
  job.before = seen.world;
  return seen;
}

/** Looks again, at a call in doubt. What was seen before it was sent stays: its undo puts that back. */
export async function observeAgain(station: Station, job: Job): Promise<Observed> {
  const seen = await see(station, job);
  if (typeof seen === 'string') return { satisfied: undefined, detail: seen };
  if (seen.satisfied) job.undoArguments = undoOf(station, job, () => seen.world);
  return seen;
}

/** What is there now, or why it cannot be told. */
async function see(station: Station, job: Job): Promise<Seen | string> {
  const wish = job.tool.observe;
  if (wish === undefined) return 'the tool no longer observes anything';
  const looked = await lookAt(station, job, wish.tool, () => wish.args({ args: job.args, agent: job.agent }));
  // Not there is an observation too: it is then null.
  if ('detail' in looked && !looked.isAbsent) return looked.detail;
  try {
    const world = 'detail' in looked ? null : resultOf(looked.answer);
    const satisfied = wish.satisfied({ args: job.args, observed: world });
    const isSecret = job.tool.redact.length > 0 || ('look' in looked && looked.look.redact.length > 0);
    if ('detail' in looked) return { satisfied, answer: NOTHING, world, isSecret };
    const shown = redactAnswer(looked.look, looked.answer, looked.args as JsonObject);
    return { satisfied, answer: redactAnswer(job.tool, shown, job.args, job.secrets), world, isSecret };
  } catch (error) {
    if (error instanceof ExpressionError) return error.message;
    throw error;
  }
}

/** More than this of what was seen is not kept for people. */
const MOST_SHOWN = 2_000;

/** What was seen of the world, for whoever has to resolve a doubt. */
export function shownToPerson({ body }: Answer): string | null {
  if (body === null || body.length <= MOST_SHOWN) return body;
  return `${legible(body, MOST_SHOWN)}…`;
}
