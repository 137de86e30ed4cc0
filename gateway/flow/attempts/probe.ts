import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { parseResult } from '../../domain/attempts/classify-answer.ts';
import { canonicalize, NotCanonicalError } from '../../domain/canonical.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import { type Expression, ExpressionError } from '../../domain/policy.ts';
import { redactAnswer } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { prepareUndoArguments } from '../sagas/undo.ts';
import type { InFlightCall } from './in-flight-call.ts';
import { type FailedRead, readEvidence } from './read-evidence.ts';

/** Whether the call had its effect, as its probe tells; `failed` when the probe gave no clear answer. */
export type ProbeResult =
  /** `detail` says why the result is the probe's own, although the contract has a `result` for it. */
  | { readonly kind: 'applied'; readonly answer: UpstreamAnswer; readonly detail?: string }
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
    // The result is built twice: from what the upstream told, for the undo; and from what the probe tool shows, for callers.
    const exact = buildResult(once.result, call, result);
    const shown = redactAnswer(read.tool, read.answer, read.args as JsonObject);
    const built = buildResult(once.result, call, parseResult(shown));
    call.undoArguments = prepareUndoArguments(ctx, call, () => exact.result);
    const { detail } = built;
    if (detail !== undefined) {
      const { txn, tool } = call.record;
      ctx.log.warn({ txn, tool }, `A call succeeded without its usual result: ${detail}.`);
    }
    const answer = once.result === undefined || detail !== undefined ? shown : toAnswer(built.result);
    return {
      kind: 'applied',
      answer: redactAnswer(call.tool, answer, call.payload.args, call.payload.secrets),
      ...(detail === undefined ? {} : { detail }),
    };
  } catch (error) {
    if (error instanceof ExpressionError) return { kind: 'failed', detail: error.message };
    throw error;
  }
}

/** The result of a call whose probe found the effect. If it cannot be built, the probe's own result, and the reason. */
function buildResult(
  expression: Expression | undefined,
  { record, payload }: InFlightCall,
  probed: Json,
): { result: Json; detail?: string } {
  if (expression === undefined) return { result: probed };
  try {
    const result = expression({ args: payload.args, agent: record.agent, result: probed });
    // A result that JSON cannot represent could not be stored.
    canonicalize(result);
    return { result };
  } catch (error) {
    if (!(error instanceof ExpressionError) && !(error instanceof NotCanonicalError)) throw error;
    const detail = `the result is the probe's own, because \`probe.result\` could not be evaluated: ${error.message}`;
    return { result: probed, detail };
  }
}

function toAnswer(result: Json): UpstreamAnswer {
  return { status: 200, contentType: 'application/json', body: JSON.stringify(result), encoding: 'utf8' };
}
