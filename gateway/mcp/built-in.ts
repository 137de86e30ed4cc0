import { z } from 'zod';
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
import { sagaView } from '../http/saga-view.ts';
import { shortName } from '../http/schemas/fields.ts';
import { openSagaBody } from '../http/schemas/saga-schemas.ts';
import { parseTtl } from '../http/transport/bodies.ts';
import { formatZodIssues } from '../policy/zod-issues.ts';

/** A request of an agent to run a built-in tool. */
interface BuiltInRequest {
  readonly services: Services;
  readonly agent: Agent;
  readonly key: string | undefined;
  /** The run of the request and the epoch that the agent holds. */
  readonly runEpoch: RunEpoch | undefined;
  readonly patienceMs: number;
  readonly cancelToken: CancelToken;
}

interface BuiltInTool {
  readonly name: string;
  readonly description: string;
  readonly effect: 'read' | 'write';
  readonly input: JsonObject;
  readonly run: (request: BuiltInRequest, args: JsonObject) => Promise<Json>;
}

function defineTool<T>(
  name: string,
  description: string,
  schema: z.ZodType<T>,
  run: (request: BuiltInRequest, args: T) => Promise<Json>,
): BuiltInTool {
  const effect = BUILT_IN[name];
  if (effect === undefined) throw new TypeError(`${name} is missing in BUILT_IN.`);
  const { $schema: _, ...input } = z.toJSONSchema(schema, { io: 'input' }) as JsonObject;
  return { name, description, effect, input, run: (request, args) => run(request, parseArguments(name, schema, args)) };
}

function parseArguments<T>(name: string, schema: z.ZodType<T>, args: JsonObject): T {
  const parsed = schema.safeParse(args);
  if (parsed.success) return parsed.data;
  const faults = formatZodIssues(args, schema, parsed.error.issues);
  throw new GatewayError('invalid_arguments', `${name}: ${faults.join(' ')}`, { members: { faults } });
}

const id = z
  .string()
  .regex(/^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, 'must be an id that this gateway returned');
const reasonText = z.string().trim().min(1).max(2_000);

/** The tools of the gateway itself, for agents whose rules allow them. */
export const BUILT_IN_TOOLS: readonly BuiltInTool[] = [
  defineTool(
    'oncegate.begin_saga',
    'Begin a saga: calls that can be undone together. Put the returned id into _meta["oncegate/saga"] of every call that belongs to it.',
    openSagaBody,
    async ({ services, agent, key, runEpoch }, { name, ttl, onExpire }) => {
      const input = { name: name ?? undefined, ttlMs: parseTtl(ttl), onExpire: onExpire ?? undefined };
      return sagaView((await beginSaga(services.ctx, agent.name, input, key, runEpoch)).sagaWithSteps, false);
    },
  ),
  defineTool(
    'oncegate.commit_saga',
    'Commit a saga: all its calls stay in effect.',
    z.strictObject({ saga: id }),
    async ({ services, agent, runEpoch }, { saga }) =>
      sagaView(await commitOwnSaga(services.ctx, saga, agent.name, runEpoch), false),
  ),
  defineTool(
    'oncegate.rollback_saga',
    'Undo all calls of a saga, or all calls after a savepoint. The rollback continues in the background; call again to see its progress.',
    z.strictObject({ saga: id, to: shortName.nullish(), reason: reasonText }),
    async ({ services, agent, patienceMs, cancelToken, runEpoch }, { saga, to, reason }) => {
      await readSaga(services.ctx, saga, agent.name);
      const rollback = { id: saga, to: to ?? undefined, reason, by: 'agent', again: false, runEpoch };
      await requestRollback(services.ctx, rollback, { agent: agent.name });
      services.rollbacks.wake({ id: saga, of: 'saga' });
      return sagaView(await awaitRollback(services, saga, agent.name, patienceMs, cancelToken), false);
    },
  ),
  defineTool(
    'oncegate.get_call',
    'The state and result of one of your calls: succeeded, failed, held for a person, or in doubt.',
    z.strictObject({ txn: id }),
    async ({ services, agent, patienceMs, cancelToken }, { txn }) => {
      const call = await readCall(services, txn, agent.name, patienceMs, cancelToken);
      return JSON.parse(callView(call)) as Json;
    },
  ),
  defineTool(
    'oncegate.list_calls',
    'Your calls, newest first.',
    z.strictObject({
      saga: id.optional(),
      state: z.enum(CALL_STATES).optional(),
      tool: z.string().max(128).optional(),
      cursor: z.string().max(512).optional(),
      limit: z.int().min(1).max(200).optional(),
    }),
    async ({ services, agent }, { saga, state, tool: name, cursor, limit }) => {
      const filter = { saga, state, tool: name, cursor, since: undefined, limit: limit ?? 50, agent: agent.name };
      const page = await findCalls(services, filter);
      const items = page.items.map((call) => JSON.parse(callView(call)) as Json);
      return { items, cursor: page.cursor ?? null };
    },
  ),
];

const toolsByName = new Map(
  BUILT_IN_TOOLS.flatMap((each) => [[each.name, each] as const, [each.name.replaceAll('.', '__'), each] as const]),
);

export function findBuiltIn(name: string): BuiltInTool | undefined {
  return toolsByName.get(name);
}

export async function runBuiltIn(builtIn: BuiltInTool, request: BuiltInRequest, args: JsonObject): Promise<Json> {
  const context = request.services.ctx;
  await authorizeBuiltIn(context, request.agent, builtIn.name, args, request.runEpoch?.run ?? null);
  // Fails for a run of another agent.
  if (request.runEpoch !== undefined) await findRun(context, request.runEpoch.run, request.agent.name);
  return builtIn.run(request, args);
}
