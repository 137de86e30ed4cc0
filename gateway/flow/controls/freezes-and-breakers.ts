import { buildAuditEntry } from '../../domain/audit/audit.ts';
import type { CallKind } from '../../domain/calls/call.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { ControlFlagScope } from '../../ledger/controls/control-flags.ts';
import type { Context } from '../context.ts';

export interface Operator {
  readonly person: string;
  readonly reason: string;
}

/** The kill switch: when this returns, nothing new is sent in its scope by any replica. */
export async function freezeScope(
  ctx: Context,
  scope: ControlFlagScope,
  { person, reason }: Operator,
): Promise<void> {
  await ctx.switches.set(scope, person, reason, buildAuditEntry('frozen', { scope, person, reason }));
}

export async function unfreezeScope(
  ctx: Context,
  scope: ControlFlagScope,
  { person, reason }: Operator,
): Promise<void> {
  await ctx.switches.clear(scope, buildAuditEntry('unfrozen', { scope, person, reason }));
}

/** Why nothing of a call is sent now. */
export interface SendBlock {
  readonly code: 'frozen' | 'unavailable';
  readonly detail: string;
}

/**
 * What keeps a call back, if anything does. A compensation runs whatever became of its agent: freezing an agent must not keep
 * what it did from being undone. What freezes everything, or the tool, holds for it too; so does a tool of which its server
 * says something else now, and a log in doubt, for all but reads, which have no effect.
 */
export function findSendBlock(
  { switches, logWatch, policies }: Pick<Context, 'switches' | 'logWatch' | 'policies'>,
  call: {
    readonly agent: string;
    readonly tool: { readonly name: string };
    readonly undoOf: string | null;
    readonly kind: CallKind;
  },
): SendBlock | undefined {
  const frozen =
    call.undoOf === null
      ? switches.findFreeze(call.agent, call.tool.name)
      : (switches.get('all') ?? switches.get(`tool:${call.tool.name}`));
  if (frozen !== undefined) return { code: 'frozen', detail: `${frozen.by} froze ${frozen.scope}` };
  const disabled = policies().tools.get(call.tool.name)?.disabled;
  if (disabled !== undefined) return { code: 'unavailable', detail: `${call.tool.name} is disabled: ${disabled}` };
  const doubt = call.kind === 'read' ? undefined : logWatch.findFault();
  return doubt === undefined ? undefined : { code: 'unavailable', detail: doubt };
}

export interface BreakerView {
  readonly upstream: string;
  readonly state: 'closed' | 'open' | 'half_open';
  /** Who put it there: the failures it counted, or a person. */
  readonly by: string;
  readonly reason: string | null;
}

/** As this process sees them: those opened by hand are the same everywhere, the others are counted by each process. */
export function listBreakers(ctx: Pick<Context, 'adapters' | 'switches'>): BreakerView[] {
  return ctx.adapters.listBreakers().map(({ upstream, state }) => {
    const hand = ctx.switches.get(`breaker:${upstream}`);
    return { upstream, state, by: hand?.by ?? 'auto', reason: hand?.reason ?? null };
  });
}

/** One opened by hand stays open until it is closed by hand. */
export async function setManualBreaker(
  ctx: Context,
  upstream: string,
  to: 'open' | 'close',
  { person, reason }: Operator,
): Promise<BreakerView> {
  if (!ctx.policies().upstreams.has(upstream))
    throw new GatewayError('not_found', `There is no upstream ${upstream.slice(0, 128)}.`);
  const entry = buildAuditEntry(`breaker_${to}`, { upstream, person, reason });
  if (to === 'open') await ctx.switches.set(`breaker:${upstream}`, person, reason, entry);
  else await ctx.switches.closeBreaker(upstream, person, reason, entry);
  const view = listBreakers(ctx).find((breaker) => breaker.upstream === upstream);
  if (view === undefined) throw new GatewayError('not_found', `There is no upstream ${upstream.slice(0, 128)}.`);
  return view;
}
