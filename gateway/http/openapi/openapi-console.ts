import { EVENT_NAMES } from '../../domain/audit/log-event.ts';
import { CALL_STATES } from '../../domain/calls/call-state.ts';
import type { JsonObject } from '../../domain/json.ts';
import { json, problem } from './openapi-parts.ts';

const NUMBER: JsonObject = { type: 'integer', minimum: 0 };
const TIME: JsonObject = { type: 'string', format: 'date-time' };
const MAYBE_TIME: JsonObject = { type: ['string', 'null'], format: 'date-time' };
const TEXT: JsonObject = { type: 'string' };
const TEXTS: JsonObject = { type: 'array', items: TEXT };
const STATE_COUNTS: JsonObject = {
  type: 'object',
  description: 'How many are in each state; a state that none is in is left out.',
  properties: Object.fromEntries(CALL_STATES.map((state) => [state, NUMBER])),
};

function object(properties: JsonObject, description?: string): JsonObject {
  const required = Object.keys(properties);
  return { type: 'object', ...(description === undefined ? {} : { description }), required, properties };
}

function list(properties: JsonObject, description: string): JsonObject {
  return { type: 'array', description, items: object(properties) };
}

const COUNTED = object({
  count: NUMBER,
  more: { type: 'boolean', description: 'There are at least as many: counting stopped there.' },
});
const WINDOW = object({
  count: NUMBER,
  more: { type: 'boolean', description: 'The calls that were counted do not reach back so far.' },
  states: STATE_COUNTS,
});

const CALLS = object(
  {
    counted: { ...NUMBER, description: 'How many of the newest calls were counted: 10,000 at most, of the last day.' },
    since: { ...MAYBE_TIME, description: 'When there were more: the oldest that was counted.' },
    minute: WINDOW,
    hour: WINDOW,
    day: WINDOW,
    perMinute: { type: 'array', items: STATE_COUNTS, description: 'The last 60 minutes, the oldest first.' },
    tools: list({ tool: TEXT, count: NUMBER, states: STATE_COUNTS }, 'Of those counted, the 50 busiest.'),
  },
  'Calls by when they began and the state they are in now.',
);

/** How things stand: what `GET /admin/stats` answers. */
export const STATS: JsonObject = object({
  at: { ...TIME, description: 'When this was counted, at most a second ago.' },
  gateway: { ...TEXT, description: 'The version of the gateway that answers.' },
  you: object({ person: TEXT, roles: TEXTS, groups: TEXTS }, 'Whose key this is.'),
  calls: CALLS,
  open: object(
    {
      held: NUMBER,
      inDoubt: NUMBER,
      underWay: { ...NUMBER, description: 'Ready, or being sent.' },
      more: { type: 'boolean', description: 'There are more than were looked at.' },
      recoveryLagSeconds: { type: 'number', description: 'How long the oldest call that is due has been due.' },
    },
    'Calls that are not final, whenever they began; at most 1,000 are looked at.',
  ),
  approvals: object({ pending: COUNTED }),
  sagas: object({ open: COUNTED, rollingBack: COUNTED, parked: COUNTED }),
  breakers: list(
    {
      upstream: TEXT,
      state: { type: 'string', enum: ['closed', 'open', 'half_open'] },
      by: TEXT,
      reason: { type: ['string', 'null'] },
    },
    'As the process that answers sees them; those opened by hand are the same everywhere.',
  ),
  frozen: list({ scope: TEXT, by: TEXT, reason: TEXT, at: TIME }, 'What is switched off: all, agent:… and tool:….'),
  policies: object({
    version: TEXT,
    refused: { ...TEXTS, description: 'Faults of what is on disk; not empty while older policies are in force.' },
  }),
  processes: list(
    {
      process: TEXT,
      pid: NUMBER,
      startedAt: TIME,
      answers: { type: 'boolean', description: 'Whether it is the one that answers.' },
    },
    'Replicas and workers that hold a lease now, 100 at most.',
  ),
  log: object({
    size: { ...NUMBER, description: 'Entries in the signed log.' },
    sealedAt: { ...MAYBE_TIME, description: 'When its newest checkpoint was signed.' },
    waiting: { ...NUMBER, description: 'Entries that wait for their place.' },
    doubt: { type: ['string', 'null'], description: 'Why this may not be the log that it was; nothing is sent then.' },
  }),
});

/** What the console shows, and how it hears of changes. */
export function consolePaths(): JsonObject {
  return {
    '/admin/stats': {
      get: {
        summary: 'How things stand, in one look that costs the same whatever the size of the ledger',
        responses: { 200: { description: 'The numbers.', content: json(STATS) }, default: problem },
      },
    },
    '/admin/events': {
      get: {
        summary: 'What happens, as it happens (server-sent events)',
        description: `Events: ${EVENT_NAMES.join(', ')}. The id of an event is the index of its entry in the log; data is JSON with what, at, names and ids, and never arguments, results or reasons.`,
        parameters: [
          {
            name: 'Last-Event-ID',
            in: 'header',
            schema: NUMBER,
            description: 'Go on after this entry. Absent: from now on.',
          },
        ],
        responses: {
          200: { description: 'A stream without end.', content: { 'text/event-stream': { schema: TEXT } } },
          default: problem,
        },
      },
    },
  };
}
