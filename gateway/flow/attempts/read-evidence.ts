import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { describeOutcome } from '../../domain/attempts/describe-outcome.ts';
import { NotCanonicalError } from '../../domain/canonical.ts';
import { GatewayError } from '../../domain/errors.ts';
import { isJsonObject, type Json } from '../../domain/json.ts';
import { ExpressionError, type Tool } from '../../domain/policy.ts';
import type { Context } from '../context.ts';
import { findSendBlock } from '../controls/freezes-and-breakers.ts';
import type { InFlightCall } from './in-flight-call.ts';

/** The result of a read that looks for the effect of a call. `absent`: the upstream answered that there is nothing. */
export type EvidenceRead =
  | { readonly kind: 'read'; readonly tool: Tool; readonly args: Json; readonly answer: UpstreamAnswer }
  | { readonly kind: 'absent'; readonly detail: string }
  | FailedRead;

/** The read proves nothing, for the reason in `detail`. */
export interface FailedRead {
  readonly kind: 'failed';
  readonly detail: string;
}

/** Reads from the upstream with the tool that a probe or an observation names. */
export async function readEvidence(
  ctx: Context,
  call: InFlightCall,
  toolName: string,
  buildArgs: () => Json,
): Promise<EvidenceRead> {
  const tool = ctx.policies().tools.get(toolName);
  if (tool === undefined) return buildFailedRead(`the tool ${toolName} is no longer declared`);
  if (tool.disabled !== undefined) return buildFailedRead(`${toolName} is disabled: ${tool.disabled}`);
  try {
    const args = buildArgs();
    if (!isJsonObject(args)) return buildFailedRead(`the arguments of ${toolName} are not an object`);
    const adapter = ctx.adapters.getAdapter(tool);
    const { controlFlags } = ctx;
    const maySend = () =>
      controlFlags.canSend(call.owner) &&
      findSendBlock(ctx, call.record) === undefined &&
      controlFlags.get(`tool:${toolName}`) === undefined;
    if (tool.upstream === call.tool.upstream && !adapter.isAt(call.payload.request.base))
      return buildFailedRead(`the address of ${tool.upstream} changed since this call was sent`);
    const request = adapter.prepare(tool, { args, agent: call.record.agent }, call.record.txn);
    // The arguments of the read may contain values that the call redacts, whatever the read tool itself redacts.
    const discreet = call.tool.redact.length > 0 || call.payload.secrets.length > 0;
    const options = { timeoutMs: tool.timeoutMs, freshConnection: false, discreet, maySend };
    const outcome = await adapter.send(tool, request, options);
    if (outcome.kind === 'ok' && outcome.wantsInput === true)
      return buildFailedRead(`${toolName} asked for more input instead of answering`);
    if (outcome.kind === 'ok') return { kind: 'read', tool, args, answer: outcome.answer };
    const isAbsent = outcome.kind === 'refused' && (outcome.answer.status === 404 || outcome.answer.status === 410);
    return { kind: isAbsent ? 'absent' : 'failed', detail: describeOutcome(outcome) };
  } catch (error) {
    // No request can be built from these arguments.
    const isArgumentError =
      error instanceof ExpressionError || error instanceof NotCanonicalError || error instanceof GatewayError;
    if (isArgumentError) return buildFailedRead(error.message);
    throw error;
  }
}

function buildFailedRead(detail: string): FailedRead {
  return { kind: 'failed', detail };
}
