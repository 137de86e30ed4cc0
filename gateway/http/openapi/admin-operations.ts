import { z } from 'zod';
import { EVENT_NAMES } from '../../domain/audit/log-event.ts';
import * as audit from '../schemas/audit-schemas.ts';
import { callAnswer, verdictBody } from '../schemas/call-schemas.ts';
import * as controls from '../schemas/control-schemas.ts';
import { count, pageOf, reasonBody, text, uuid } from '../schemas/fields.ts';
import { runAnswer } from '../schemas/run-schemas.ts';
import { adminRollbackBody, planAnswer, resumeBody, sagaAnswer, undoCallBody } from '../schemas/saga-schemas.ts';
import { statsAnswer } from '../schemas/stats-schema.ts';
import * as agents from './agent-operations.ts';
import { type AnswerSpec, get, type Operation, type Operations, post } from './operation.ts';

const { approvalAnswer, breakerAnswer, pinAnswer, agentFreezeAnswer, scopeFreezeAnswer } = controls;
const { ROLLING_BACK, waiting } = agents;

function list(summary: string, item: z.ZodType, query: Operation['query'] = {}) {
  return get(summary, ['A page. It may hold fewer items than the limit.', pageOf(item)], { query });
}

/** An action of a person. Repeating it changes nothing. */
function action(summary: string, body: z.ZodType, answer: z.ZodType) {
  const done: AnswerSpec = ['The action took effect, now or earlier.', answer];
  return post(summary, body, { 200: done });
}

/** The operations of people. */
export const ADMIN_OPERATIONS: Operations = {
  '/admin/calls': get('All calls, newest first', agents.CALL_PAGE, { query: { agent: text, ...agents.callFilters } }),
  '/admin/calls/{txn}': get('One call with its timeline', ['The call.', callAnswer]),
  '/admin/calls/{txn}/resolve': action('Resolve a doubt', verdictBody, callAnswer),
  '/admin/calls/{txn}/undo': post(
    'Undo one call',
    undoCallBody,
    { 202: ['The undo continues in the background. The call as it is now.', callAnswer] },
    { query: waiting },
  ),
  '/admin/approvals': list('Calls that wait, or waited, for people', approvalAnswer, {
    state: controls.approvalState,
    cursor: text,
  }),
  '/admin/approvals/{txn}': get('One approval', ['The shown request, its digest, and the votes.', approvalAnswer]),
  '/admin/approvals/{txn}/approve': action('Approve exactly what was shown', controls.decisionBody, approvalAnswer),
  '/admin/approvals/{txn}/reject': action('Reject a held call: nothing is sent', controls.decisionBody, approvalAnswer),
  '/admin/sagas': get('All sagas, newest first', agents.SAGA_PAGE, { query: { agent: text, ...agents.sagaFilters } }),
  '/admin/sagas/{id}': get('A saga, its steps, and the arguments of each undo', agents.SAGA),
  '/admin/sagas/{id}/rollback': post(
    'Undo the steps of a saga, or plan it',
    adminRollbackBody,
    { 200: ['A dry run: what would be done.', planAnswer], 202: ROLLING_BACK },
    { query: waiting },
  ),
  '/admin/sagas/{id}/resume': post('Resume a parked rollback', resumeBody, { 202: ROLLING_BACK }, { query: waiting }),
  '/admin/sagas/{id}/close': action('Close a parked saga that was handled by hand', reasonBody, sagaAnswer),
  '/admin/runs': get('All runs, newest first', agents.RUN_PAGE, { query: { agent: text, ...agents.runFilters } }),
  '/admin/runs/{id}': get('One run', agents.RUN),
  '/admin/runs/{id}/finish': action('Finish a run without its holder: the holder is fenced', reasonBody, runAnswer),
  '/admin/locks': list('Held locks, with holder and time', controls.lockAnswer, {
    agent: text,
    holder: uuid,
    ...agents.paging,
  }),
  '/admin/breakers': list('Circuit breakers of the upstreams', breakerAnswer),
  '/admin/breakers/{upstream}/open': action(
    'Stop sends to an upstream until closed by hand',
    reasonBody,
    breakerAnswer,
  ),
  '/admin/breakers/{upstream}/close': action('Close a circuit breaker and reset its counts', reasonBody, breakerAnswer),
  '/admin/pins': list('Pinned definitions of imported tools, and offered changes', pinAnswer),
  '/admin/pins/{upstream}/{tool}/accept': action('Accept an offered definition', controls.acceptPinBody, pinAnswer),
  '/admin/agents': list('Agents, their rules, and their freezes', controls.agentAnswer),
  '/admin/agents/{agent}/freeze': action('Freeze an agent: nothing new is sent', reasonBody, agentFreezeAnswer),
  '/admin/agents/{agent}/unfreeze': action('Lift the freeze of an agent', reasonBody, agentFreezeAnswer),
  '/admin/freezes': list('Freezes, with person and reason', controls.freezeAnswer),
  '/admin/freeze': action('Freeze a tool, or everything: nothing new is sent', controls.freezeBody, scopeFreezeAnswer),
  '/admin/unfreeze': action('Lift the freeze of a tool, or of everything', controls.freezeBody, scopeFreezeAnswer),
  '/admin/policies': get('The policies in force', ['Version and names.', controls.policiesAnswer]),
  '/admin/policies/reload': {
    post: {
      summary: 'Load the policies again',
      answers: { 200: ['The version in force.', controls.policyVersionAnswer] },
    },
  },
  '/admin/explain': post('Decide and explain a call without sending it', controls.explainBody, {
    200: ['The explanation.', controls.dryRunAnswer],
  }),
  '/admin/audit/checkpoint': get('The newest checkpoint', ['The signed note.', text, 'text/plain']),
  '/admin/audit/key': get('The public key of the log', ['Name, id and key.', text, 'text/plain']),
  '/admin/audit/entries': get(
    'Entries of the log in order',
    ['A page. Its cursor is the next `from`.', pageOf(audit.logEntryAnswer)],
    { query: { from: count, to: count, format: z.enum(['json', 'jsonl']) } },
  ),
  '/admin/audit/proof': get(
    'Prove that an entry is in the log (leaf), or that the log only grew between two sizes (from, to)',
    ['The proof.', z.union([audit.inclusionProofAnswer, audit.consistencyProofAnswer])],
    { query: { leaf: audit.sha256Text, from: count, to: count } },
  ),
  '/admin/audit/accept': action(
    'Accept the log of the database although a kept checkpoint differs',
    reasonBody,
    audit.logAcceptanceAnswer,
  ),
  '/admin/erase': action(
    'Erase the payloads of an agent, a saga, a call, or of all calls that name a subject',
    audit.eraseBody,
    audit.erasureAnswer,
  ),
  '/admin/stats': get('Current numbers, at a cost that does not grow with the ledger', ['The numbers.', statsAnswer]),
  '/admin/events': get('Live events (server-sent events)', ['A stream without end.', text, 'text/event-stream'], {
    description: `Events: ${EVENT_NAMES.join(', ')}. The id of an event is the index of its entry in the log; data is JSON with what, at, names and ids, and never arguments, results or reasons.`,
    headers: ['LastEventId'],
  }),
};
