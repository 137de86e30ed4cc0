import { z } from 'zod';
import { CALL_STATES } from '../../domain/calls/call-state.ts';
import { ERRORS } from '../../domain/errors.ts';
import { UNDO_STATES } from '../../domain/sagas/saga.ts';
import { anyJson, count, jsonObject, reason, text, time, uuid } from './fields.ts';

export const callState = z.enum(CALL_STATES);
const PEOPLE_ONLY = 'Only people see it.';

export const verdictBody = z.strictObject({
  verdict: z.enum(['applied', 'not_applied', 'retry']),
  result: anyJson.optional().describe('The result of the call, if it was applied.'),
  reason,
  senderIsDead: z.boolean().optional().describe('Confirms that the process that sent the call no longer runs.'),
});

export const undoAnswer = z
  .object({
    state: z.enum(UNDO_STATES),
    kind: z.enum(['reversible', 'compensable', 'irreversible', 'none']).nullable(),
    tool: text.nullable(),
    args: z.exactOptional(jsonObject.nullable()).describe(PEOPLE_ONLY),
    txn: uuid.nullable().describe('The compensation: the call that undoes this one.'),
    reason: text.nullable(),
  })
  .meta({ id: 'Undo', description: 'How a call is, would be, or was undone.' });

export const holdAnswer = z
  .object({ kind: z.enum(['approval', 'delay']), until: time })
  .describe('Only of a held call: whether it waits for people or for its delay, and until when.');

const EVENT = z.looseObject({ at: time, what: text }).describe('One event, with members that depend on `what`.');

/** The answer to a call, and the call as a resource, which has more members. */
export const callAnswer = z
  .object({
    txn: uuid,
    tool: text,
    state: callState,
    replayed: z.boolean(),
    hold: holdAnswer.optional(),
    result: anyJson,
    outcome: text.nullish(),
    problem: z.looseObject({ code: text, detail: text }).nullish(),
    saga: uuid.nullish(),
    run: uuid.nullish(),
    epoch: z.int().nullish(),
    lockToken: z.int().nullish().describe('Grows each time the call takes its locks.'),
    undo: undoAnswer.optional(),
    undoes: uuid.optional().describe('The call that this call undoes.'),
    attempts: z.int(),
    receipt: z.object({ leaf: text }).nullish().describe('The hash of the audit log entry.'),
    key: text.nullish(),
    args: jsonObject.nullish(),
    createdAt: time.optional(),
    settledAt: time.nullish(),
    erasedAt: time.nullish(),
    agent: text.optional().describe(PEOPLE_ONLY),
    kind: text.optional().describe(PEOPLE_ONLY),
    policyVersion: text.optional().describe(PEOPLE_ONLY),
    rule: text.nullish().describe(PEOPLE_ONLY),
    evidence: text.nullish().describe(PEOPLE_ONLY),
    resolvedBy: text.nullish().describe(PEOPLE_ONLY),
    contradiction: text.nullish().describe(PEOPLE_ONLY),
    ownerDeaths: count.optional().describe(PEOPLE_ONLY),
    unresolved: count.optional().describe(PEOPLE_ONLY),
    timeline: z.array(EVENT).optional().describe(`Oldest first. ${PEOPLE_ONLY}`),
  })
  .meta({ id: 'Call' });

export const problemAnswer = z
  .looseObject({
    type: text,
    title: text,
    status: z.int(),
    detail: text,
    instance: text.optional(),
    code: z.enum(Object.keys(ERRORS)),
    retry: z.enum(['never', 'same_key', 'new_key', 'after_delay']),
    txn: uuid.optional(),
    state: callState.optional(),
  })
  .meta({ id: 'Problem' });

export type UndoView = z.infer<typeof undoAnswer>;
