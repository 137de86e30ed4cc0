import { z } from 'zod';
import { SAGA_STATES } from '../../domain/sagas/saga.ts';
import { callState, undoAnswer } from './call-schemas.ts';
import { digestOf, jsonObject, reason, shortName, taint, text, time, ttl, uuid } from './fields.ts';

const savepoint = shortName.nullish().describe('The savepoint to roll back to. Absent: roll back everything.');

export const openSagaBody = z.strictObject({
  name: shortName.nullish(),
  ttl: ttl.nullish().describe('A duration such as 5m, or seconds.'),
  onExpire: z.enum(['rollback', 'park']).nullish().meta({ default: 'rollback' }),
});
export const savepointBody = z.strictObject({ name: shortName });
export const rollbackBody = z.strictObject({ to: savepoint, reason });
export const adminRollbackBody = z
  .strictObject({
    to: savepoint,
    reason: reason.optional().describe('Required unless dryRun is true.'),
    dryRun: z.boolean().optional(),
    digest: digestOf('a plan')
      .optional()
      .describe('The digest of a dry run. If the plan has changed since, nothing is undone and the answer is 409.'),
  })
  .refine((body) => body.dryRun === true || body.reason !== undefined, { path: ['reason'], message: 'Required' });
export const resumeBody = z.strictObject({
  reason,
  waive: z.array(uuid).max(1_000).optional().describe('Steps that the steps they depend on no longer wait for.'),
});
export const undoCallBody = z.strictObject({
  reason,
  args: jsonObject.optional().describe('The arguments of the undo, where the gateway could not determine them.'),
});

export const sagaState = z.enum(SAGA_STATES);

const sagaMembers = z.object({
  saga: uuid,
  name: text.nullable(),
  state: sagaState,
  reason: text.nullable(),
  createdAt: time,
  expiresAt: time.nullable(),
  onExpire: z.enum(['rollback', 'park']),
  endedAt: time.nullable(),
  tainted: taint,
  agent: z.exactOptional(text).describe('Only people see it.'),
  by: z.exactOptional(text.nullable()).describe('Who requested the last change. Only people see it.'),
});

export const sagaLineAnswer = sagaMembers
  .extend({ steps: z.int().describe('The number of steps.') })
  .meta({ id: 'SagaLine' });

const step = z.object({ txn: uuid, tool: text, state: callState, dependsOn: z.array(uuid), undo: undoAnswer });
const sagaStep = step.extend({
  waived: z.exactOptional(z.boolean()).describe('Other steps no longer wait for its undo. Only people see it.'),
});

export const sagaAnswer = sagaMembers
  .extend({
    steps: z.array(sagaStep).describe('In the order of the calls.'),
    savepoints: z.array(z.object({ name: text, after: z.int() })),
  })
  .meta({ id: 'Saga' });

const plannedStep = step.extend({
  dependsOn: z.array(uuid).nullable().describe('Null: on all earlier steps.'),
  does: z.enum(['undo', 'nothing', 'wait', 'cancel', 'cannot']),
  wave: z.int().nullable().describe('The steps of one wave are undone at once; wave by wave in ascending order.'),
  why: text.nullable(),
  blockedBy: text.nullable().describe('The step that this step would wait for.'),
});

export const planAnswer = z
  .object({
    dryRun: z.literal(true),
    saga: uuid,
    state: sagaState,
    to: text.nullable(),
    digest: digestOf('a plan').describe('A rollback that sends this digest undoes exactly this plan, or nothing.'),
    wouldEnd: sagaState,
    plan: z.array(plannedStep).describe('In the order of execution.'),
    kept: z.array(z.object({ txn: uuid, tool: text })),
  })
  .meta({ id: 'Plan' });

export const savepointAnswer = z.object({ saga: uuid, name: shortName, after: z.int() });

export type SagaMembers = z.infer<typeof sagaMembers>;
export type SagaView = z.infer<typeof sagaAnswer>;
export type SagaStepView = z.infer<typeof sagaStep>;
export type PlanView = z.infer<typeof planAnswer>;
export type PlannedStepView = z.infer<typeof plannedStep>;
