import { z } from 'zod';
import { CALL_STATES } from '../../domain/calls/call-state.ts';
import { breakerAnswer, freezeAnswer } from './control-schemas.ts';
import { count, text, time } from './fields.ts';

const perState = z
  .object(Object.fromEntries(CALL_STATES.map((state) => [state, count.optional()])))
  .describe('The number of calls per state; states without calls are left out.');
const cappedCount = z.object({ count, more: z.boolean().describe('Counting stopped here: there may be more.') });
const timeWindow = z.object({
  count,
  more: z.boolean().describe('The counted calls do not reach back this far.'),
  states: perState,
});

/** The answer of `GET /admin/stats`. */
export const statsAnswer = z.object({
  at: time.describe('When the numbers were read, at most a second ago.'),
  gateway: text.describe('The version of the gateway.'),
  you: z.object({ person: text, roles: z.array(text), groups: z.array(text) }).describe('The owner of the key.'),
  calls: z
    .object({
      counted: count.describe('The number of counted calls: the newest 10,000 at most, of the last day.'),
      since: time.nullable().describe('The oldest counted call, when there were more.'),
      minute: timeWindow,
      hour: timeWindow,
      day: timeWindow,
      perMinute: z.array(perState).describe('The last 60 minutes, oldest first.'),
      tools: z
        .array(z.object({ tool: text, count, states: perState }))
        .describe('The 50 busiest of the counted calls.'),
    })
    .describe('Calls by the time they began and the state they are in now.'),
  open: z
    .object({
      held: count,
      inDoubt: count,
      underWay: count.describe('In state ready or sending.'),
      more: z.boolean().describe('There are more than were examined.'),
      recoveryLagSeconds: z.number().describe('How long the oldest due call has been due.'),
    })
    .describe('Calls that are not final, of any age; at most 1,000 are examined.'),
  approvals: z.object({ pending: cappedCount }),
  sagas: z.object({ open: cappedCount, rollingBack: cappedCount, parked: cappedCount }),
  breakers: z
    .array(breakerAnswer)
    .describe('As the answering process sees them; breakers opened by hand are equal everywhere.'),
  frozen: z.array(freezeAnswer),
  policies: z.object({
    version: text,
    refused: z.array(text).describe('Faults of the policies on disk; empty when they are in force.'),
  }),
  processes: z
    .array(
      z.object({ process: text, pid: count, startedAt: time, answers: z.boolean().describe('Answers this request.') }),
    )
    .describe('Processes that hold a lease, at most 100.'),
  log: z.object({
    size: count.describe('Entries in the audit log.'),
    sealedAt: time.nullable().describe('When the newest checkpoint was signed.'),
    waiting: count.describe('Entries that wait to be appended.'),
    doubt: text.nullable().describe('Why the log may have been tampered with; then nothing is sent.'),
  }),
});
