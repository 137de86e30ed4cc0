import type { Answer } from '../domain/adapter.ts';
import type { JsonObject } from '../domain/json.ts';
import { ExpressionError } from '../domain/policy.ts';
import type { Job } from './job.ts';
import { lookAt } from './look.ts';
import { redactAnswer, resultOf } from './payload.ts';
import type { Station } from './station.ts';
import { undoOf } from './undo.ts';

/** What a look at the upstream told: it happened, it did not, or it could not be told. */
export type Probed =
  | { readonly applied: boolean; readonly answer: Answer }
  | { readonly applied: undefined; readonly detail: string };

/** Asks the upstream whether the call happened, with the read that the tool names for it. */
export async function probe(station: Station, job: Job): Promise<Probed> {
  const once = job.tool.once;
  if (once.by !== 'probe') return { applied: undefined, detail: 'the tool no longer has a probe' };
  const looked = await lookAt(station, job, once.tool, () => once.args({ args: job.args, agent: job.agent }));
  if ('detail' in looked) return { applied: undefined, detail: looked.detail };
  try {
    const result = resultOf(looked.answer);
    const applied = once.applied({ args: job.args, result });
    if (applied) job.undoArguments = undoOf(station, job, () => result);
    const seen = redactAnswer(looked.look, looked.answer, looked.args as JsonObject);
    return { applied, answer: redactAnswer(job.tool, seen, job.args, job.secrets) };
  } catch (error) {
    if (error instanceof ExpressionError) return { applied: undefined, detail: error.message };
    throw error;
  }
}
