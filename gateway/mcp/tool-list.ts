import type { Tool as McpTool } from '@modelcontextprotocol/server';
import type { McpEra } from '../domain/attempts/adapter.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent, Policies, Tool } from '../domain/policy.ts';
import { callable, vendorName } from '../http/catalogue.ts';
import { canAllowTool } from '../policy/decide.ts';
import { BUILT_IN_TOOLS } from './built-in.ts';

/** What this agent may call. What a server says of its own tools' effects is not repeated: contracts say it. */
export function toolList(policies: Policies, agent: Agent, era: McpEra): McpTool[] {
  const builtIn = BUILT_IN_TOOLS.filter((tool) => canAllowTool(agent, tool)).map(
    ({ name, description, input, effect }): McpTool => ({
      name: vendorName(name),
      description,
      inputSchema: input as McpTool['inputSchema'],
      annotations: { readOnlyHint: effect === 'read', destructiveHint: false, openWorldHint: false },
    }),
  );
  return [...callable(policies, agent).map((tool) => shown(tool, era)), ...builtIn];
}

function shown(tool: Tool, era: McpEra): McpTool {
  const output = era === 'legacy' ? withOurAnswers(tool.output) : tool.output;
  return {
    name: vendorName(tool.name),
    ...(tool.title === undefined ? {} : { title: tool.title }),
    description: tool.description,
    inputSchema: (tool.input['type'] === 'object'
      ? tool.input
      : { ...tool.input, type: 'object' }) as McpTool['inputSchema'],
    ...(isOfObjects(output) ? { outputSchema: output as NonNullable<McpTool['outputSchema']> } : {}),
    annotations: annotations(tool),
    _meta: { 'oncegate/once': tool.effect === 'read' ? 'read' : tool.once.by, 'oncegate/undo': tool.undo.kind },
  };
}

/** Hints by what the contract promises: a repeat is harmless if it is caught, and what can be undone destroys nothing. */
function annotations(tool: Tool): NonNullable<McpTool['annotations']> {
  const isRead = tool.effect === 'read';
  const isUndoable = tool.undo.kind === 'reversible' || tool.undo.kind === 'compensable';
  return {
    readOnlyHint: isRead,
    destructiveHint: !isRead && !isUndoable,
    idempotentHint: isRead || tool.once.by === 'idempotent' || tool.repeats.policy === 'replay',
    openWorldHint: true,
  };
}

/** Clients of all revisions understand only results that are objects. */
function isOfObjects(output: JsonObject | undefined): boolean {
  return output?.['type'] === 'object';
}

/** What stands in the place of a result: a problem, a call that goes on or whose answer is lost, a dry run. */
const OUR_ANSWERS: readonly JsonObject[] = [
  { required: ['type', 'code', 'retry'], properties: { code: { type: 'string' } } },
  { required: ['txn', 'tool', 'state', 'replayed'] },
  { required: ['dryRun'], properties: { dryRun: { const: true } } },
];

/**
 * Old clients hold whatever is structured against the schema, an error too, and keep from the model what does not fit. A
 * schema that refers to itself otherwise than by its definitions cannot be put beside others, and is not shown.
 */
function withOurAnswers(output: JsonObject | undefined): JsonObject | undefined {
  if (output === undefined || !isOfObjects(output)) return output;
  const { $schema, $defs, definitions, ...own } = output;
  if (/"\$ref":"(?!#\/(?:\$defs|definitions)\/)/.test(JSON.stringify(output))) return undefined;
  const shared = Object.entries({ $schema, $defs, definitions }).filter(([, value]) => value !== undefined);
  return { ...(Object.fromEntries(shared) as JsonObject), type: 'object', anyOf: [own, ...OUR_ANSWERS] };
}
