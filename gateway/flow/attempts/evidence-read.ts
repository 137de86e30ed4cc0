import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { NotCanonicalError } from '../../domain/canonical.ts';
import { GatewayError } from '../../domain/errors.ts';
import { isJsonObject, type Json } from '../../domain/json.ts';
import { ExpressionError, type Tool } from '../../domain/policy.ts';
import type { Context } from '../context.ts';
import { findSendBlock } from '../controls/freezes-and-breakers.ts';
import type { Job } from './job.ts';
import { describeOutcome } from './record.ts';

/** What a read told about the world, or why it told nothing: one reason is that there is nothing to see. */
export type EvidenceRead =
  | { readonly look: Tool; readonly args: Json; readonly answer: UpstreamAnswer }
  | { readonly detail: string; readonly isAbsent: boolean };

/** Looks at the upstream with a read, on behalf of a call in hand. */
export async function readEvidence(
  station: Context,
  job: Job,
  name: string,
  argsOf: () => Json,
): Promise<EvidenceRead> {
  const look = station.policies().tools.get(name);
  if (look === undefined) return buildFailedReading(`${name} no longer exists`);
  if (look.disabled !== undefined) return buildFailedReading(`${name} is disabled: ${look.disabled}`);
  try {
    const args = argsOf();
    if (!isJsonObject(args)) return buildFailedReading(`the arguments of ${name} are no object`);
    const adapter = station.adapters.getAdapter(look);
    const { switches } = station;
    const maySend = () =>
      switches.canSend(job.owner) &&
      findSendBlock(station, job) === undefined &&
      switches.get(`tool:${name}`) === undefined;
    if (look.upstream === job.tool.upstream && !adapter.isAt(job.request.base))
      return buildFailedReading(`the URL of ${look.upstream} changed since the call was sent`);
    const request = adapter.prepare(look, { args, agent: job.agent }, job.txn);
    // It is asked about what the call redacts, whatever the look itself does.
    const discreet = job.tool.redact.length > 0 || job.secrets.length > 0;
    const options = { timeoutMs: look.timeoutMs, freshConnection: false, discreet, maySend };
    const outcome = await adapter.send(look, request, options);
    if (outcome.kind === 'ok' && outcome.wantsInput === true) return buildFailedReading(`${name} only asked for more`);
    if (outcome.kind === 'ok') return { look, args, answer: outcome.answer };
    const isAbsent = outcome.kind === 'refused' && (outcome.answer.status === 404 || outcome.answer.status === 410);
    return { detail: describeOutcome(outcome), isAbsent };
  } catch (error) {
    // Nor can it look with a request that these arguments do not make.
    const isOfTheirs =
      error instanceof ExpressionError || error instanceof NotCanonicalError || error instanceof GatewayError;
    if (isOfTheirs) return buildFailedReading(error.message);
    throw error;
  }
}

function buildFailedReading(detail: string): EvidenceRead {
  return { detail, isAbsent: false };
}
