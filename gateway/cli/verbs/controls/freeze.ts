import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { textField } from '../../json-fields.ts';
import { paint } from '../../output.ts';
import { REASON_OPTION, readReason } from '../../reason-option.ts';
import { isYes } from '../../terminal.ts';
import { type Invocation, UsageError, type Verb, VerbError } from '../../verb.ts';

type FreezeAction = 'freeze' | 'unfreeze';

export const freezeVerb = buildFreezeVerb('freeze', 'stop all new sends: of everything, one agent or one tool');
export const unfreezeVerb = buildFreezeVerb('unfreeze', 'end a freeze');

function buildFreezeVerb(action: FreezeAction, summary: string): Verb {
  return {
    name: action,
    summary,
    options: {
      agent: { value: 'AGENT', help: 'only calls of this agent' },
      tool: { value: 'TOOL', help: 'only calls of this tool' },
      reason: REASON_OPTION,
      ...(action === 'freeze' ? { yes: { help: 'freeze everything without asking for confirmation' } } : {}),
    },
    run: (invocation) => setFreeze(invocation, action),
  };
}

async function setFreeze(invocation: Invocation, action: FreezeAction): Promise<number> {
  const { io, out, text } = invocation;
  const agent = text('agent');
  const tool = text('tool');
  if (agent !== undefined && tool !== undefined) throw new UsageError('--agent and --tool exclude each other');
  const reason = readReason(invocation);
  if (action === 'freeze' && agent === undefined && tool === undefined) await confirmFreezeAll(invocation);
  const answer = await requestGateway(io, buildFreezePath(agent, action), {
    method: 'POST',
    body: { reason, ...(tool === undefined ? {} : { tool }) },
    advice: ({ code }) => (code === 'not_found' ? buildNotFoundAdvice(agent) : undefined),
  });
  out.printJson(answer);
  const scope = agent ?? tool ?? 'everything';
  const isNowFrozen = isFrozen(answer);
  const state = paint(isNowFrozen ? 'red' : 'green', isNowFrozen ? 'frozen' : 'not frozen');
  if (out.isTerminal) out.printLine(`${scope} is `, state);
  else out.printLine(`${scope}\t`, state);
  const remaining = answer['frozen'];
  if (action === 'unfreeze' && isJsonObject(remaining))
    out.printNote(
      `Still frozen by the freeze of ${textField(remaining, 'scope')} (${textField(remaining, 'by')}: ${textField(remaining, 'reason')})`,
    );
  // Exit code 1 if the state is not the requested one, so that a script notices.
  return isNowFrozen === (action === 'freeze') ? 0 : 1;
}

/** A forgotten --agent or --tool would stop everything. Scripts and `--json` are not asked. */
async function confirmFreezeAll({ io, hasFlag, isJson }: Invocation): Promise<void> {
  if (hasFlag('yes') || isJson || io.prompt === undefined) return;
  if (isYes(await io.prompt('Freeze everything, for every agent? [y/N] '))) return;
  throw new VerbError('not_decided', 'Nothing was frozen. To freeze less, add --agent AGENT or --tool TOOL.');
}

/** Refuses anything but a name: `..` in the path would freeze everything instead of one agent. */
function buildFreezePath(agent: string | undefined, action: FreezeAction): string {
  if (agent === undefined) return `/admin/${action}`;
  if (/^[A-Za-z0-9_-]+$/.test(agent)) return `/admin/agents/${agent}/${action}`;
  throw new VerbError('not_found', `There is no agent ${JSON.stringify(agent)}.\n${buildNotFoundAdvice(agent)}`);
}

function buildNotFoundAdvice(agent: string | undefined): string {
  return agent === undefined
    ? '"oncegate check" reads the policies; use the name of a tool in them.'
    : '"oncegate agents" lists the agents.';
}

function isFrozen({ frozen }: JsonObject): boolean {
  return frozen === true || isJsonObject(frozen);
}
