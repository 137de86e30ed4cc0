import type { Answer } from '../domain/adapter.ts';
import { isObject } from '../domain/json.ts';
import { ExpressionError } from '../domain/policy.ts';
import type { Job } from './job.ts';
import { redactAnswer, resultOf } from './payload.ts';
import { describe } from './record.ts';
import type { Station } from './station.ts';

/** What a look at the upstream told: it happened, it did not, or it could not be told. */
export type Probed =
  | { readonly applied: boolean; readonly answer: Answer }
  | { readonly applied: undefined; readonly detail: string };

/** Asks the upstream whether the call happened, with the read that the tool names for it. */
export async function probe(station: Station, job: Job): Promise<Probed> {
  const once = job.tool.once;
  if (once.by !== 'probe') return { applied: undefined, detail: 'the tool no longer has a probe' };
  const look = station.policies().tools.get(once.tool);
  if (look === undefined) return { applied: undefined, detail: `the probe ${once.tool} no longer exists` };
  try {
    const args = once.args({ args: job.args, agent: job.agent });
    if (!isObject(args)) return { applied: undefined, detail: `the arguments of the probe ${look.name} are no object` };
    const adapter = station.adapters.for(look);
    const { switches } = station;
    const isFrozen = () => [job.tool, look].some(({ name }) => switches.frozen(job.agent, name) !== undefined);
    const maySend = () => switches.inForce(job.owner) && !isFrozen();
    const options = { timeoutMs: look.timeoutMs, freshConnection: false, maySend };
    const request = adapter.prepare(look, { args, agent: job.agent }, job.txn);
    if (look.upstream === job.tool.upstream && job.request.base !== undefined && request.base !== job.request.base) {
      return { applied: undefined, detail: `${look.upstream} is somewhere else now than when this was sent` };
    }
    const outcome = await adapter.send(look, request, options);
    if (outcome.kind !== 'ok') return { applied: undefined, detail: describe(outcome) };
    return {
      applied: once.applied({ args: job.args, result: resultOf(outcome.answer) }),
      answer: redactAnswer(job.tool, redactAnswer(look, outcome.answer, args), job.args),
    };
  } catch (error) {
    if (error instanceof ExpressionError) return { applied: undefined, detail: error.message };
    throw error;
  }
}
