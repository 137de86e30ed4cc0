import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { type CallOrigin, listTaintTargets, type TaintScope } from '../../domain/controls/taint.ts';
import type { Policies, Tool } from '../../domain/policy.ts';
import { isRunOfAgent, recordTaint, type TaintExposure } from '../../ledger/controls/taints.ts';
import type { ToolAnswer, ToolCall } from '../calls/execute-call.ts';
import type { Context } from '../context.ts';

/** The cache is cleared at this size. The ledger holds every taint. */
const MAX_CACHED_TAINTS = 10_000;

/** Taints that this replica knows. A taint is permanent, so no entry ever becomes wrong. */
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

/** Whether the answer may contain untrusted content, from the tool itself or from its observe or probe tool. */
export function isUntrusted({ tools }: Policies, tool: Tool): boolean {
  const { observe, once } = tool;
  return (
    tool.untrusted === true ||
    (observe !== undefined && tools.get(observe.tool)?.untrusted === true) ||
    (once.by === 'probe' && tools.get(once.tool)?.untrusted === true)
  );
}

/** What a call of an untrusted tool taints; undefined when all of it is already tainted. */
export function findExposure(
  { taintCache }: Pick<Context, 'taintCache'>,
  origin: CallOrigin,
  { txn, tool }: { readonly txn: string | null; readonly tool: string },
): TaintExposure | undefined {
  const scopes = listTaintTargets(origin).filter((scope) => !taintCache.has(scope));
  // A call outside a run also taints the open runs of its agent, and only the ledger knows which runs are open.
  const isOutsideRuns = origin.run === null;
  if (scopes.length === 0 && !isOutsideRuns) return undefined;
  const { agent } = origin;
  const buildEntry = ({ of, holder }: TaintScope) => buildAuditEntry('tainted', { agent, [of]: holder, txn, tool });
  return { agent, scopes, isOutsideRuns, txn, tool, buildEntry };
}

/**
 * Taints an agent before it receives untrusted content without a claim of its own: a replay, or an MCP resource. Also taints an
 * agent that claimed outside a run once more, because it may have begun a run while it waited for the answer.
 */
export async function taintRecipient(
  ctx: Context,
  origin: CallOrigin,
  source: { readonly txn: string | null; readonly tool: string },
): Promise<void> {
  const exposure = findExposure(ctx, origin, source);
  if (exposure === undefined) return;
  await recordTaint(ctx.db, exposure);
  ctx.taintCache.add(exposure.scopes);
}

/** Taints the caller before it receives an untrusted answer. Skips a caller that claimed in a run: the claim has tainted it. */
export function taintIfUntrusted(ctx: Context, toolCall: ToolCall, answer: ToolAnswer): Promise<void> | undefined {
  const policies = ctx.policies();
  const tool = policies.tools.get(toolCall.tool);
  if (tool === undefined || !isUntrusted(policies, tool) || (!answer.repeat && toolCall.runEpoch !== undefined)) return;
  return taintCallingAgent(ctx, toolCall, answer);
}

async function taintCallingAgent(ctx: Context, toolCall: ToolCall, { call, repeat }: ToolAnswer): Promise<void> {
  const { agent, runEpoch } = toolCall;
  const run = runEpoch?.run ?? null;
  // A replay does not check that the named run belongs to the agent. The run of another agent counts as no run.
  const isOwn = !repeat || run === null || (await isRunOfAgent(ctx.db, run, agent.name));
  await taintRecipient(ctx, { agent: agent.name, saga: toolCall.saga ?? null, run: isOwn ? run : null }, call);
}
