import { isObject, type JsonObject } from '../domain/json.ts';
import { member, textOf } from './call-text.ts';
import { stringifyExact } from './exact-json.ts';
import type { Output, Piece, Style } from './output.ts';
import { undoText } from './undo-text.ts';
import { span } from './words.ts';

export function approvalStyle(state: string): Style | undefined {
  if (state === 'approved') return 'green';
  return state === 'pending' ? 'yellow' : 'red';
}

/** `1/2`: so many of so many said yes. */
export function votesText({ votes, quorum }: JsonObject): string {
  const yes = Array.isArray(votes) ? votes.filter((vote) => isObject(vote) && vote['verdict'] === 'approve').length : 0;
  return `${yes}/${textOf(quorum)}`;
}

export function groupsText({ groups }: JsonObject): string {
  return Array.isArray(groups) && groups.length > 0 ? groups.map(textOf).join(', ') : 'any approver';
}

/** How much time is left, for a person; the moment, for a program. */
export function untilText(out: Output, approval: JsonObject): string {
  const until = member(approval, 'expiresAt');
  if (!out.terminal || approval['state'] !== 'pending') return until;
  const left = Date.parse(until) - Date.now();
  return left > 0 ? span(left) : 'over';
}

/** Everything that the digest stands for, and the digest last: what a person says yes to. */
export function tellApproval(out: Output, approval: JsonObject): void {
  const { target, undo, args, votes, input } = approval;
  const fields: [string, string][] = [
    ['txn', member(approval, 'txn')],
    ['agent', member(approval, 'agent')],
    ['tool', member(approval, 'tool')],
    ['target', isObject(target) ? `${member(target, 'method')} ${member(target, 'url')}` : textOf(target)],
    ['args', out.terminal && args !== undefined ? stringifyExact(args) : textOf(args)],
    ...(input === undefined ? [] : [['input', stringifyExact(input)] as [string, string]]),
    ['undo', isObject(undo) ? undoText(undo) : textOf(undo)],
    ['saga', member(approval, 'saga')],
    ['rule', member(approval, 'rule')],
    ['decided by', `${groupsText(approval)}, ${votesText(approval)} so far`],
    ...(Array.isArray(votes) ? votes.filter(isObject) : []).map((vote): [string, string] => [
      'vote',
      `${member(vote, 'person')}: ${member(vote, 'verdict')}, ${member(vote, 'reason')}`,
    ]),
    [out.terminal && approval['state'] === 'pending' ? 'time left' : 'expiresAt', untilText(out, approval)],
    ['policies', member(approval, 'policyVersion')],
    ['digest', member(approval, 'digest')],
  ];
  out.fields(fields.filter(([, value]) => value !== '') as readonly (readonly [string, Piece])[]);
}
