import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import type { JsonObject } from '../../domain/json.ts';
import { ExpressionError } from '../../domain/policy.ts';
import { parseResult, redactAnswer } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { prepareUndoArguments } from '../sagas/undo.ts';
import type { Job } from './job.ts';
import { type FailedRead, readEvidence } from './read-evidence.ts';

/** Whether the call had its effect, as its probe tells; `failed` when the probe gave no clear answer. */
export type ProbeResult =
  | { readonly kind: 'applied'; readonly answer: UpstreamAnswer }
  | { readonly kind: 'not_applied' }
  | FailedRead;

/** Asks the upstream whether the call had its effect, with the read that the tool names as its probe. */
export async function runProbe(ctx: Context, job: Job): Promise<ProbeResult> {
  const once = job.tool.once;
  if (once.by !== 'probe') return { kind: 'failed', detail: 'the tool no longer declares a probe' };
  const read = await readEvidence(ctx, job, once.tool, () => once.args({ args: job.args, agent: job.agent }));
  if (read.kind !== 'read') return { kind: 'failed', detail: read.detail };
  try {
    const result = parseResult(read.answer);
    if (!once.applied({ args: job.args, result })) return { kind: 'not_applied' };
    job.undoArguments = prepareUndoArguments(ctx, job, () => result);
    const shown = redactAnswer(read.tool, read.answer, read.args as JsonObject);
    return { kind: 'applied', answer: redactAnswer(job.tool, shown, job.args, job.secrets) };
  } catch (error) {
    if (error instanceof ExpressionError) return { kind: 'failed', detail: error.message };
    throw error;
  }
}
