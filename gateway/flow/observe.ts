import type { Answer } from '../domain/adapter.ts';
import type { JsonObject } from '../domain/json.ts';
import { ExpressionError } from '../domain/policy.ts';
import type { Job } from './job.ts';
import { lookAt } from './look.ts';
import { redactAnswer, resultOf } from './payload.ts';
import type { Station } from './station.ts';
import { keepBefore } from './undo.ts';

/** What the world was like before the call: as asked already, or not; or it could not be seen. */
export type Observed =
  | { readonly satisfied: boolean; readonly answer: Answer }
  | { readonly satisfied: undefined; readonly detail: string };

const NOTHING: Answer = { status: 200, contentType: 'application/json', body: null, encoding: 'utf8' };

/** Looks before the first attempt. What is seen is kept with the call: its undo may have to put it back. */
export async function observe(station: Station, job: Job): Promise<Observed> {
  const wish = job.tool.observe;
  if (wish === undefined) return { satisfied: undefined, detail: 'the tool no longer observes anything' };
  const looked = await lookAt(station, job, wish.tool, () => wish.args({ args: job.args, agent: job.agent }));
  // Not there is an observation too: `before` is then null.
  if ('detail' in looked && !looked.isAbsent) return { satisfied: undefined, detail: looked.detail };
  try {
    const before = 'detail' in looked ? null : resultOf(looked.answer);
    const satisfied = wish.satisfied({ args: job.args, observed: before });
    job.before = before;
    const isSecret = job.tool.redact.length > 0 || ('look' in looked && looked.look.redact.length > 0);
    job.undoArguments = keepBefore(station.sealingKey, job.txn, before, isSecret);
    if ('detail' in looked) return { satisfied, answer: NOTHING };
    const seen = redactAnswer(looked.look, looked.answer, looked.args as JsonObject);
    return { satisfied, answer: redactAnswer(job.tool, seen, job.args) };
  } catch (error) {
    if (error instanceof ExpressionError) return { satisfied: undefined, detail: error.message };
    throw error;
  }
}
