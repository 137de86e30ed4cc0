import type { Answer } from '../domain/adapter.ts';
import { NotCanonical } from '../domain/canonical.ts';
import { GatewayError } from '../domain/errors.ts';
import { isObject, type Json } from '../domain/json.ts';
import { ExpressionError, type Tool } from '../domain/policy.ts';
import type { Job } from './job.ts';
import { describe } from './record.ts';
import type { Station } from './station.ts';
import { frozenFor } from './switching.ts';

/** What a read told about the world, or why it told nothing: one reason is that there is nothing to see. */
export type Looked =
  | { readonly look: Tool; readonly args: Json; readonly answer: Answer }
  | { readonly detail: string; readonly isAbsent: boolean };

/** Looks at the upstream with a read, on behalf of a call in hand. */
export async function lookAt(station: Station, job: Job, name: string, argsOf: () => Json): Promise<Looked> {
  const look = station.policies().tools.get(name);
  if (look === undefined) return blind(`${name} no longer exists`);
  if (look.disabled !== undefined) return blind(`${name} is disabled: ${look.disabled}`);
  try {
    const args = argsOf();
    if (!isObject(args)) return blind(`the arguments of ${name} are no object`);
    const adapter = station.adapters.for(look);
    const { switches } = station;
    const maySend = () =>
      switches.inForce(job.owner) &&
      frozenFor(station, job) === undefined &&
      switches.get(`tool:${name}`) === undefined;
    if (look.upstream === job.tool.upstream && !adapter.isAt(job.request.base))
      return blind(`${look.upstream} is somewhere else now than when this was sent`);
    const request = adapter.prepare(look, { args, agent: job.agent }, job.txn);
    // It is asked about what the call redacts, whatever the look itself does.
    const discreet = job.tool.redact.length > 0 || job.secrets.length > 0;
    const options = { timeoutMs: look.timeoutMs, freshConnection: false, discreet, maySend };
    const outcome = await adapter.send(look, request, options);
    if (outcome.kind === 'ok' && outcome.wantsInput === true) return blind(`${name} only asked for more`);
    if (outcome.kind === 'ok') return { look, args, answer: outcome.answer };
    const isAbsent = outcome.kind === 'refused' && (outcome.answer.status === 404 || outcome.answer.status === 410);
    return { detail: describe(outcome), isAbsent };
  } catch (error) {
    // Nor can it look with a request that these arguments do not make.
    const isOfTheirs =
      error instanceof ExpressionError || error instanceof NotCanonical || error instanceof GatewayError;
    if (isOfTheirs) return blind(error.message);
    throw error;
  }
}

function blind(detail: string): Looked {
  return { detail, isAbsent: false };
}
