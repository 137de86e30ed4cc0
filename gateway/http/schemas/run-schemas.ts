import { z } from 'zod';
import { callState } from './call-schemas.ts';
import { anyJson, shortName, taint, text, time, ttl, uuid } from './fields.ts';

export const takeRunBody = z.strictObject({
  name: shortName,
  ttl: ttl
    .nullish()
    .describe('A duration such as 5m, or seconds. A run without a sign of life for this long counts as abandoned.'),
});

export const runLineAnswer = z
  .object({
    run: uuid,
    name: text,
    epoch: z.int().min(1),
    drained: z.boolean().describe('No call of an earlier epoch can have an effect any more.'),
    createdAt: time,
    takenAt: time,
    lastSeenAt: time.describe('The last takeover, heartbeat, checkpoint or call.'),
    ttlSeconds: z.number().nullable(),
    abandoned: z.boolean().describe('No sign of life for longer than the ttl.'),
    endedAt: time.nullable(),
    checkpointAt: time.nullable(),
    tainted: taint,
    agent: z.exactOptional(text).describe('Only people see it.'),
  })
  .meta({ id: 'RunLine' });

const openCall = z.object({ txn: uuid, tool: text, state: callState, epoch: z.int(), createdAt: time });

export const runAnswer = runLineAnswer
  .extend({
    open: z
      .array(openCall)
      .describe('Calls of earlier epochs that may still have an effect, oldest first, at most 1000.'),
    checkpoint: anyJson.describe('Any JSON; null without a checkpoint.'),
  })
  .meta({ id: 'Run' });

export type RunLineView = z.infer<typeof runLineAnswer>;
