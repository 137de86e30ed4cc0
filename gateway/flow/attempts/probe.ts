import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import type { JsonObject } from '../../domain/json.ts';
import { ExpressionError } from '../../domain/policy.ts';
import { parseResult, redactAnswer } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { prepareUndoArguments } from '../sagas/undo.ts';
import type { InFlightCall } from './in-flight-call.ts';
import { type FailedRead, readEvidence } from './read-evidence.ts';

/** Whether the call had its effect, as its probe tells; `failed` when the probe gave no clear answer. */
export type ProbeResult =
  | { readonly kind: 'applied'; readonly answer: UpstreamAnswer }
  | { readonly kind: 'not_applied' }
  | FailedRead;

/** Asks the upstream whether the call had its effect, with the read that the tool names as its probe. */
export async function runProbe(ctx: Context, call: InFlightCall): Promise<ProbeResult> {
  const once = call.tool.once;
  if (once.by !== 'probe') return { kind: 'failed', detail: 'the tool no longer declares a probe' };
  const read = await readEvidence(ctx, call, once.tool, () =>
    once.args({ args: call.payload.args, agent: call.record.agent }),
  );
  if (read.kind !== 'read') return { kind: 'failed', detail: read.detail };
  try {
    const result = parseResult(read.answer);
    if (!once.applied({ args: call.payload.args, result })) return { kind: 'not_applied' };
    call.undoArguments = prepareUndoArguments(ctx, call, () => result);
    const shown = redactAnswer(read.tool, read.answer, read.args as JsonObject);
    return { kind: 'applied', answer: redactAnswer(call.tool, shown, call.payload.args, call.payload.secrets) };
  } catch (error) {
    if (error instanceof ExpressionError) return { kind: 'failed', detail: error.message };
    throw error;
  }
}
