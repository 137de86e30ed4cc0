import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import type { JsonObject } from '../../domain/json.ts';
import { ExpressionError } from '../../domain/policy.ts';
import { parseResult, redactAnswer } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { prepareUndoArguments } from '../sagas/undo.ts';
import { readEvidence } from './evidence-read.ts';
import type { Job } from './job.ts';

/** What a look at the upstream told: it happened, it did not, or it could not be told. */
export type ProbeResult =
  | { readonly applied: boolean; readonly answer: UpstreamAnswer }
  | { readonly applied: undefined; readonly detail: string };

/** Asks the upstream whether the call happened, with the read that the tool names for it. */
export async function runProbe(station: Context, job: Job): Promise<ProbeResult> {
  const once = job.tool.once;
  if (once.by !== 'probe') return { applied: undefined, detail: 'the tool no longer has a probe' };
  const looked = await readEvidence(station, job, once.tool, () => once.args({ args: job.args, agent: job.agent }));
  if ('detail' in looked) return { applied: undefined, detail: looked.detail };
  try {
    const result = parseResult(looked.answer);
    const applied = once.applied({ args: job.args, result });
    if (applied) job.undoArguments = prepareUndoArguments(station, job, () => result);
    const seen = redactAnswer(looked.look, looked.answer, looked.args as JsonObject);
    return { applied, answer: redactAnswer(job.tool, seen, job.args, job.secrets) };
  } catch (error) {
    if (error instanceof ExpressionError) return { applied: undefined, detail: error.message };
    throw error;
  }
}
