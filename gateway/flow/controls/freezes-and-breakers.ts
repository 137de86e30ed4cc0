import { buildAuditEntry } from '../../domain/audit/audit.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { ControlFlagScope } from '../../ledger/controls/control-flags.ts';
import type { Context } from '../context.ts';

/** Who changes a control flag, and why. */
export interface Operator {
  readonly person: string;
  readonly reason: string;
}

/** Freezes a scope. After this returns, no replica starts a send in the scope. */
export async function freezeScope(ctx: Context, scope: ControlFlagScope, { person, reason }: Operator): Promise<void> {
  await ctx.controlFlags.set(scope, person, reason, buildAuditEntry('frozen', { scope, person, reason }));
}

export async function unfreezeScope(
  ctx: Context,
  scope: ControlFlagScope,
  { person, reason }: Operator,
): Promise<void> {
  await ctx.controlFlags.clear(scope, buildAuditEntry('unfrozen', { scope, person, reason }));
}

/** The reason why a call must not be sent now. */
export interface SendBlock {
  readonly code: 'frozen' | 'unavailable';
  readonly detail: string;
}

/**
 * Finds the reason why a call must not be sent: a freeze, a disabled tool, or an audit log in doubt.
 *
 * A freeze of the agent does not stop a compensation, because the effects of a frozen agent must remain undoable. A freeze of
 * everything or of the tool does. An audit log in doubt does not stop reads, because reads have no effect.
 */
export function findSendBlock(
  { controlFlags, logMonitor, policies }: Pick<Context, 'controlFlags' | 'logMonitor' | 'policies'>,
  call: Pick<CallRecord, 'agent' | 'tool' | 'undoOf' | 'kind'>,
): SendBlock | undefined {
  const frozen =
    call.undoOf === null
      ? controlFlags.findFreeze(call.agent, call.tool)
      : (controlFlags.get('all') ?? controlFlags.get(`tool:${call.tool}`));
  if (frozen !== undefined) return { code: 'frozen', detail: `${frozen.by} froze ${frozen.scope}` };
  const disabled = policies().tools.get(call.tool)?.disabled;
  if (disabled !== undefined) return { code: 'unavailable', detail: `${call.tool} is disabled: ${disabled}` };
  const doubt = call.kind === 'read' ? undefined : logMonitor.findFault();
  return doubt === undefined ? undefined : { code: 'unavailable', detail: doubt };
}

export interface BreakerView {
  readonly upstream: string;
  readonly state: 'closed' | 'open' | 'half_open';
  /** `auto` if counted failures set the state, else the person who opened the breaker. */
  readonly by: string;
  readonly reason: string | null;
}

/** The breakers of this replica, which counts its own failures. A breaker opened by hand is open on every replica. */
export function listBreakers(ctx: Pick<Context, 'adapters' | 'controlFlags'>): BreakerView[] {
  return ctx.adapters.listBreakers().map(({ upstream, state }) => {
    const flag = ctx.controlFlags.get(`breaker:${upstream}`);
    return { upstream, state, by: flag?.by ?? 'auto', reason: flag?.reason ?? null };
  });
}

/** Opens or closes a breaker by hand. A breaker opened by hand stays open until a person closes it. */
export async function setManualBreaker(
  ctx: Context,
  upstream: string,
  to: 'open' | 'close',
  { person, reason }: Operator,
): Promise<BreakerView> {
  if (!ctx.policies().upstreams.has(upstream))
    throw new GatewayError('not_found', `There is no upstream ${upstream.slice(0, 128)}.`);
  const entry = buildAuditEntry(`breaker_${to}`, { upstream, person, reason });
  if (to === 'open') await ctx.controlFlags.set(`breaker:${upstream}`, person, reason, entry);
  else await ctx.controlFlags.closeBreaker(upstream, person, reason, entry);
  const view = listBreakers(ctx).find((breaker) => breaker.upstream === upstream);
  if (view === undefined) throw new GatewayError('not_found', `There is no upstream ${upstream.slice(0, 128)}.`);
  return view;
}
