import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { stringifyExact } from '../../exact-json.ts';
import { formatJson, textField } from '../../json-fields.ts';
import type { Output, Style, StyledText } from '../../output.ts';
import { formatDuration } from '../../quantities.ts';
import { formatUndo } from '../sagas/undo-text.ts';

export function approvalStateStyle(state: string): Style | undefined {
  if (state === 'approved' || state === 'unopposed') return 'green';
  return state === 'pending' ? 'yellow' : 'red';
}

/** `1/2`: one of two needed approvals. */
export function formatVotes(approval: JsonObject): string {
  return `${listApprovers(approval).length}/${formatJson(approval['quorum'])}`;
}

export function listApprovers({ votes }: JsonObject): string[] {
  const all = Array.isArray(votes) ? votes.filter(isJsonObject) : [];
  return all.filter(({ verdict }) => verdict === 'approve').map((vote) => textField(vote, 'person'));
}

export function formatGroups({ groups }: JsonObject): string {
  return Array.isArray(groups) && groups.length > 0 ? groups.map(formatJson).join(', ') : 'any approver';
}

/** The time left on a terminal; the time of expiry elsewhere. */
export function formatTimeLeft(out: Output, approval: JsonObject): string {
  const until = textField(approval, 'expiresAt');
  if (!out.isTerminal || approval['state'] !== 'pending') return until;
  const leftMs = Date.parse(until) - Date.now();
  const text = leftMs > 0 ? formatDuration(leftMs) : 'over';
  return approval['hold'] === 'delay' ? `${text}, sends` : text;
}

function formatDelay({ hold, leavesAt, delaySeconds }: JsonObject): string {
  if (hold === 'delay') return `sent automatically at ${formatJson(leavesAt)}, unless you reject it`;
  return typeof delaySeconds === 'number' ? `${formatDuration(delaySeconds * 1000)} after the approval` : '';
}

/** Prints everything that the digest covers, and the digest last. */
export function printApproval(out: Output, approval: JsonObject): void {
  const { target, undo, args, votes, input, voters } = approval;
  const fields: [string, string][] = [
    ['txn', textField(approval, 'txn')],
    ['agent', textField(approval, 'agent')],
    ['tool', textField(approval, 'tool')],
    [
      'target',
      isJsonObject(target) ? `${textField(target, 'method')} ${textField(target, 'url')}` : formatJson(target),
    ],
    ['args', out.isTerminal && args !== undefined ? stringifyExact(args) : formatJson(args)],
    ...(input === undefined ? [] : [['input', stringifyExact(input)] as [string, string]]),
    ['undo', isJsonObject(undo) ? formatUndo(undo) : formatJson(undo)],
    ['saga', textField(approval, 'saga')],
    ['rule', textField(approval, 'rule')],
    ...(Array.isArray(voters) ? voters.filter(isJsonObject) : []).map((vote): [string, string] => [
      'voter',
      [`${textField(vote, 'voter')}: ${textField(vote, 'verdict')}`, textField(vote, 'reason')]
        .filter(Boolean)
        .join(', '),
    ]),
    ['decided by', `${formatGroups(approval)}, ${formatVotes(approval)} so far`],
    ['delay', formatDelay(approval)],
    ...(Array.isArray(votes) ? votes.filter(isJsonObject) : []).map((vote): [string, string] => [
      'vote',
      `${textField(vote, 'person')}: ${textField(vote, 'verdict')}, ${textField(vote, 'reason')}`,
    ]),
    [out.isTerminal && approval['state'] === 'pending' ? 'time left' : 'expiresAt', formatTimeLeft(out, approval)],
    ['policies', textField(approval, 'policyVersion')],
    ['digest', textField(approval, 'digest')],
  ];
  out.printFields(fields.filter(([, value]) => value !== '') as readonly (readonly [string, StyledText])[]);
}
