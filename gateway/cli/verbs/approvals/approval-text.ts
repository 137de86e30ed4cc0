import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { span } from '../../count-words.ts';
import { stringifyExact } from '../../exact-json.ts';
import type { Output, Piece, Style } from '../../output.ts';
import { member, textOf } from '../calls/call-text.ts';
import { undoText } from '../sagas/undo-text.ts';

export function approvalStyle(state: string): Style | undefined {
  if (state === 'approved' || state === 'unopposed') return 'green';
  return state === 'pending' ? 'yellow' : 'red';
}

/** `1/2`: so many of so many said yes. */
export function votesText(approval: JsonObject): string {
  return `${approversOf(approval).length}/${textOf(approval['quorum'])}`;
}

export function approversOf({ votes }: JsonObject): string[] {
  const all = Array.isArray(votes) ? votes.filter(isJsonObject) : [];
  return all.filter(({ verdict }) => verdict === 'approve').map((vote) => member(vote, 'person'));
}

export function groupsText({ groups }: JsonObject): string {
  return Array.isArray(groups) && groups.length > 0 ? groups.map(textOf).join(', ') : 'any approver';
}

/** How much time is left, for a person; the moment, for a program. */
export function untilText(out: Output, approval: JsonObject): string {
  const until = member(approval, 'expiresAt');
  if (!out.terminal || approval['state'] !== 'pending') return until;
  const left = Date.parse(until) - Date.now();
  const text = left > 0 ? span(left) : 'over';
  return approval['hold'] === 'delay' ? `${text}, leaves` : text;
}

/** Whether it waits for people or leaves by itself, and when. */
function delayText({ hold, leavesAt, delaySeconds }: JsonObject): string {
  if (hold === 'delay') return `it leaves by itself at ${textOf(leavesAt)}; reject it to stop it`;
  return typeof delaySeconds === 'number' ? `${span(delaySeconds * 1000)} more once it is approved` : '';
}

/** Everything that the digest stands for, and the digest last: what a person says yes to. */
export function tellApproval(out: Output, approval: JsonObject): void {
  const { target, undo, args, votes, input, voters } = approval;
  const fields: [string, string][] = [
    ['txn', member(approval, 'txn')],
    ['agent', member(approval, 'agent')],
    ['tool', member(approval, 'tool')],
    ['target', isJsonObject(target) ? `${member(target, 'method')} ${member(target, 'url')}` : textOf(target)],
    ['args', out.terminal && args !== undefined ? stringifyExact(args) : textOf(args)],
    ...(input === undefined ? [] : [['input', stringifyExact(input)] as [string, string]]),
    ['undo', isJsonObject(undo) ? undoText(undo) : textOf(undo)],
    ['saga', member(approval, 'saga')],
    ['rule', member(approval, 'rule')],
    ...(Array.isArray(voters) ? voters.filter(isJsonObject) : []).map((vote): [string, string] => [
      'voter',
      [`${member(vote, 'voter')}: ${member(vote, 'verdict')}`, member(vote, 'reason')].filter(Boolean).join(', '),
    ]),
    ['decided by', `${groupsText(approval)}, ${votesText(approval)} so far`],
    ['delay', delayText(approval)],
    ...(Array.isArray(votes) ? votes.filter(isJsonObject) : []).map((vote): [string, string] => [
      'vote',
      `${member(vote, 'person')}: ${member(vote, 'verdict')}, ${member(vote, 'reason')}`,
    ]),
    [out.terminal && approval['state'] === 'pending' ? 'time left' : 'expiresAt', untilText(out, approval)],
    ['policies', member(approval, 'policyVersion')],
    ['digest', member(approval, 'digest')],
  ];
  out.fields(fields.filter(([, value]) => value !== '') as readonly (readonly [string, Piece])[]);
}
