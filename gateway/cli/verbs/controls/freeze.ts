import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { paint } from '../../output.ts';
import { REASON, reasonOf } from '../../reason-option.ts';
import { isYes } from '../../terminal.ts';
import { type Invocation, NotGood, UsageError, type Verb } from '../../verb.ts';
import { member } from '../calls/call-text.ts';

type Turn = 'freeze' | 'unfreeze';

export const freezeVerb = switchVerb('freeze', 'the kill switch: nothing new is sent, of all or of one');
export const unfreezeVerb = switchVerb('unfreeze', 'let it go on');

function switchVerb(turn: Turn, summary: string): Verb {
  return {
    name: turn,
    summary,
    options: {
      agent: { value: 'AGENT', help: 'only what this agent asks for' },
      tool: { value: 'TOOL', help: 'only calls of this tool' },
      reason: REASON,
      ...(turn === 'freeze' ? { yes: { help: 'do not ask before everything is frozen' } } : {}),
    },
    run: (invocation) => turnSwitch(invocation, turn),
  };
}

async function turnSwitch(invocation: Invocation, turn: Turn): Promise<number> {
  const { io, out, text } = invocation;
  const agent = text('agent');
  const tool = text('tool');
  if (agent !== undefined && tool !== undefined) throw new UsageError('--agent and --tool exclude one another');
  const reason = reasonOf(invocation);
  if (turn === 'freeze' && agent === undefined && tool === undefined) await confirm(invocation);
  const answer = await askGateway(io, pathOf(agent, turn), {
    method: 'POST',
    body: { reason, ...(tool === undefined ? {} : { tool }) },
    advice: ({ code }) => (code === 'not_found' ? adviceOf(agent) : undefined),
  });
  out.json(answer);
  const what = agent ?? tool ?? 'everything';
  const frozen = isFrozen(answer);
  const state = paint(frozen ? 'red' : 'green', frozen ? 'frozen' : 'not frozen');
  if (out.terminal) out.line(`${what} is `, state);
  else out.line(`${what}\t`, state);
  const by = answer['frozen'];
  if (turn === 'unfreeze' && isJsonObject(by))
    out.note(`Still frozen with ${member(by, 'scope')}, by ${member(by, 'by')}: ${member(by, 'reason')}`);
  // Whoever wanted one state and got the other must notice, in a script too.
  return frozen === (turn === 'freeze') ? 0 : 1;
}

/** A scope that was forgotten stops everybody. Scripts, and whoever has no terminal, get what they said. */
async function confirm({ io, flag, json }: Invocation): Promise<void> {
  if (flag('yes') || json || io.ask === undefined) return;
  if (isYes(await io.ask('Freeze everything, for every agent? [y/N] '))) return;
  throw new NotGood('not_decided', 'Nothing is frozen by this. For one: --agent AGENT or --tool TOOL.');
}

/** A name that is none could lead the path somewhere else: `..` to the switch of everything. */
function pathOf(agent: string | undefined, turn: Turn): string {
  if (agent === undefined) return `/admin/${turn}`;
  if (/^[A-Za-z0-9_-]+$/.test(agent)) return `/admin/agents/${agent}/${turn}`;
  throw new NotGood('not_found', `There is no agent ${JSON.stringify(agent)}.\n${adviceOf(agent)}`);
}

function adviceOf(agent: string | undefined): string {
  return agent === undefined
    ? 'A tool has the name that the policies give it.'
    : '"oncegate agents" lists the agents that there are.';
}

function isFrozen({ frozen }: JsonObject): boolean {
  return frozen === true || isJsonObject(frozen);
}
