import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { type CallOrigin, listTaintTargets, type TaintScope } from '../../domain/controls/taint.ts';
import type { Policies, Tool } from '../../domain/policy.ts';
import { isRunOfAgent, recordTaint, type TaintExposure } from '../../ledger/controls/taints.ts';
import type { ToolAnswer, ToolCall } from '../calls/execute-call.ts';
import type { Context } from '../context.ts';

/** More than this many are not remembered; the ledger knows them all. */
const MAX_CACHED_TAINTS = 10_000;

/** What this process knows to be tainted. It never becomes clean again, so there is nothing to forget. */
export class TaintCache {
  readonly #known = new Set<string>();

  has({ of, holder }: TaintScope): boolean {
    return this.#known.has(`${of} ${holder}`);
  }

  add(scopes: readonly TaintScope[]): void {
    if (this.#known.size >= MAX_CACHED_TAINTS) this.#known.clear();
    for (const { of, holder } of scopes) this.#known.add(`${of} ${holder}`);
  }
}

/** Whether what the agent is told may be a stranger's words: the tool's own, or those of what looks for its effect. */
export function isUntrusted({ tools }: Policies, tool: Tool): boolean {
  const { observe, once } = tool;
  return (
    tool.untrusted === true ||
    (observe !== undefined && tools.get(observe.tool)?.untrusted === true) ||
    (once.by === 'probe' && tools.get(once.tool)?.untrusted === true)
  );
}

/** What a call of an untrusted tool taints; undefined: nothing that is not known to be. */
export function findExposure(
  { taints: known }: Pick<Context, 'taints'>,
  place: CallOrigin,
  { txn, tool }: { readonly txn: string | null; readonly tool: string },
): TaintExposure | undefined {
  const scopes = listTaintTargets(place).filter((scope) => !known.has(scope));
  // Which runs are open is known to the ledger only.
  const loose = place.run === null;
  if (scopes.length === 0 && !loose) return undefined;
  const { agent } = place;
  const entryOf = ({ of, holder }: TaintScope) => buildAuditEntry('tainted', { agent, [of]: holder, txn, tool });
  return { agent, scopes, loose, txn, tool, entryOf };
}

/**
 * Taints whoever is about to be told an untrusted answer without having claimed it: a repeat, or a resource. And once more
 * those who claimed it outside of runs: a run that was begun while they waited goes on with what they are told now.
 */
export async function taintRecipient(
  ctx: Context,
  place: CallOrigin,
  what: { readonly txn: string | null; readonly tool: string },
): Promise<void> {
  const exposure = findExposure(ctx, place, what);
  if (exposure === undefined) return;
  await recordTaint(ctx.db, exposure);
  ctx.taints.add(exposure.scopes);
}

/** Whoever is told what strangers wrote is tainted before it is told; whoever claimed the call in a run is already. */
export function taintIfUntrusted(ctx: Context, asked: ToolCall, answer: ToolAnswer): Promise<void> | undefined {
  const policies = ctx.policies();
  const tool = policies.tools.get(asked.tool);
  if (tool === undefined || !isUntrusted(policies, tool) || (!answer.repeat && asked.fence !== undefined)) return;
  return taintCallingAgent(ctx, asked, answer);
}

async function taintCallingAgent(ctx: Context, asked: ToolCall, { call, repeat }: ToolAnswer): Promise<void> {
  const { agent, fence } = asked;
  const run = fence?.run ?? null;
  // Of a repeat nobody asked whether the run that it names is the agent's: one that is not is as none.
  const isOwn = !repeat || run === null || (await isRunOfAgent(ctx.db, run, agent.name));
  await taintRecipient(ctx, { agent: agent.name, saga: asked.saga ?? null, run: isOwn ? run : null }, call);
}
