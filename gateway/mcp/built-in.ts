import { z } from 'zod';
import { summarizeCall } from '../domain/calls/call.ts';
import { CALL_STATES } from '../domain/calls/call-state.ts';
import type { RunEpoch } from '../domain/controls/run.ts';
import { GatewayError } from '../domain/errors.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { Agent } from '../domain/policy.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { findCalls, readCall } from '../flow/calls/own-calls.ts';
import type { CancelToken } from '../flow/cancel-token.ts';
import { findRun } from '../flow/controls/runs.ts';
import { authorizeBuiltIn, BUILT_IN } from '../flow/mcp/built-in-tools.ts';
import { requestRollback } from '../flow/sagas/rollback.ts';
import { awaitRollback, beginSaga, commitOwnSaga, readSaga } from '../flow/sagas/sagas.ts';
import { callView } from '../http/encode.ts';
import { sagaSchema, savepointName, ttlOf } from '../http/saga-routes.ts';
import { sagaView } from '../http/saga-view.ts';
import { formatZodIssues } from '../policy/zod-issues.ts';

/** A built-in tool in somebody's hands. */
interface Use {
  readonly flow: Services;
  readonly agent: Agent;
  readonly key: string | undefined;
  /** The run it is done in, and the epoch that the agent holds. */
  readonly fence: RunEpoch | undefined;
  readonly patienceMs: number;
  readonly caller: CancelToken;
}

interface BuiltInTool {
  readonly name: string;
  readonly description: string;
  readonly effect: 'read' | 'write';
  readonly input: JsonObject;
  readonly run: (use: Use, args: JsonObject) => Promise<Json>;
}

function tool<T>(
  name: string,
  description: string,
  schema: z.ZodType<T>,
  run: (use: Use, args: T) => Promise<Json>,
): BuiltInTool {
  const effect = BUILT_IN[name];
  if (effect === undefined) throw new TypeError(`${name} is not a built-in tool`);
  const { $schema: _, ...input } = z.toJSONSchema(schema, { io: 'input' }) as JsonObject;
  return { name, description, effect, input, run: (use, args) => run(use, read(name, schema, args)) };
}

function read<T>(name: string, schema: z.ZodType<T>, args: JsonObject): T {
  const parsed = schema.safeParse(args);
  if (parsed.success) return parsed.data;
  const faults = formatZodIssues(args, schema, parsed.error.issues);
  throw new GatewayError('invalid_arguments', `${name}: ${faults.join(' ')}`, { members: { faults } });
}

const id = z.string().regex(/^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, 'must be an id that this gateway gave');
const reason = z.string().trim().min(1).max(2_000);

/** The gateway's own tools, for agents whose rules allow them. */
export const BUILT_IN_TOOLS: readonly BuiltInTool[] = [
  tool(
    'oncegate.begin_saga',
    'Begin a piece of work that can be undone as a whole. Put the id that comes back into _meta["oncegate/saga"] of every call that belongs to it.',
    sagaSchema,
    async ({ flow, agent, key, fence }, { name, ttl, onExpire }) => {
      const wish = { name: name ?? undefined, ttlMs: ttlOf(ttl), onExpire: onExpire ?? undefined };
      return sagaView((await beginSaga(flow.station, agent.name, wish, key, fence)).story, false);
    },
  ),
  tool(
    'oncegate.commit_saga',
    'The work is done: everything in it stays.',
    z.strictObject({ saga: id }),
    async ({ flow, agent, fence }, { saga }) =>
      sagaView(await commitOwnSaga(flow.station, saga, agent.name, fence), false),
  ),
  tool(
    'oncegate.rollback_saga',
    'Undo everything that was done in a saga, or everything after a savepoint of it. It goes on by itself; ask again to see how far it is.',
    z.strictObject({ saga: id, to: savepointName.nullish(), reason }),
    async ({ flow, agent, patienceMs, caller, fence }, { saga, to, reason: why }) => {
      await readSaga(flow.station, saga, agent.name);
      const order = { id: saga, to: to ?? undefined, reason: why, by: 'agent', again: false, fence };
      await requestRollback(flow.station, order, { agent: agent.name });
      flow.rollbacks.wake({ id: saga, of: 'saga' });
      return sagaView(await awaitRollback(flow, saga, agent.name, patienceMs, caller), false);
    },
  ),
  tool(
    'oncegate.get_call',
    'How one of your calls stands: whether it succeeded, failed, waits for a person, or is in doubt, and its result.',
    z.strictObject({ txn: id }),
    async ({ flow, agent, patienceMs, caller }, { txn }) => {
      const call = await readCall(flow, txn, agent.name, patienceMs, caller);
      return JSON.parse(callView(call, summarizeCall(call).pursued, false)) as Json;
    },
  ),
  tool(
    'oncegate.list_calls',
    'Your calls, newest first.',
    z.strictObject({
      saga: id.optional(),
      state: z.enum(CALL_STATES).optional(),
      tool: z.string().max(128).optional(),
      cursor: z.string().max(512).optional(),
      limit: z.int().min(1).max(200).optional(),
    }),
    async ({ flow, agent }, { saga, state, tool: name, cursor, limit }) => {
      const filter = { saga, state, tool: name, cursor, since: undefined, limit: limit ?? 50, agent: agent.name };
      const page = await findCalls(flow, filter);
      const items = page.items.map((call) => JSON.parse(callView(call, summarizeCall(call).pursued, false)) as Json);
      return { items, cursor: page.cursor ?? null };
    },
  ),
];

const byName = new Map(
  BUILT_IN_TOOLS.flatMap((each) => [[each.name, each] as const, [each.name.replaceAll('.', '__'), each] as const]),
);

export function builtInNamed(name: string): BuiltInTool | undefined {
  return byName.get(name);
}

export async function useBuiltIn(builtIn: BuiltInTool, use: Use, args: JsonObject): Promise<Json> {
  const { station } = use.flow;
  await authorizeBuiltIn(station, use.agent, builtIn.name, args, use.fence?.run ?? null);
  // Another agent's run is none.
  if (use.fence !== undefined) await findRun(station, use.fence.run, use.agent.name);
  return builtIn.run(use, args);
}
