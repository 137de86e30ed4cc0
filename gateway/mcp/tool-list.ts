import type { Tool as McpTool } from '@modelcontextprotocol/server';
import type { McpEra } from '../domain/attempts/adapter.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent, Policies, Tool } from '../domain/policy.ts';
import { listCallableTools, toVendorName } from '../http/catalogue.ts';
import { canAllowTool } from '../policy/decide.ts';
import { BUILT_IN_TOOLS } from './built-in.ts';

/** The tools that this agent may call. Annotations come from the contracts, not from what an upstream claims. */
export function listMcpTools(policies: Policies, agent: Agent, era: McpEra): McpTool[] {
  const builtIn = BUILT_IN_TOOLS.filter((tool) => canAllowTool(agent, tool)).map(
    ({ name, description, input, effect }): McpTool => ({
      name: toVendorName(name),
      description,
      inputSchema: input as McpTool['inputSchema'],
      annotations: { readOnlyHint: effect === 'read', destructiveHint: false, openWorldHint: false },
    }),
  );
  return [...listCallableTools(policies, agent).map((tool) => describeTool(tool, era)), ...builtIn];
}

function describeTool(tool: Tool, era: McpEra): McpTool {
  const output = era === 'legacy' ? withGatewayAnswers(tool.output) : tool.output;
  return {
    name: toVendorName(tool.name),
    ...(tool.title === undefined ? {} : { title: tool.title }),
    description: tool.description,
    inputSchema: (tool.input['type'] === 'object'
      ? tool.input
      : { ...tool.input, type: 'object' }) as McpTool['inputSchema'],
    ...(isObjectSchema(output) ? { outputSchema: output as NonNullable<McpTool['outputSchema']> } : {}),
    annotations: buildAnnotations(tool),
    _meta: { 'oncegate/once': tool.effect === 'read' ? 'read' : tool.once.by, 'oncegate/undo': tool.undo.kind },
  };
}

/** Hints from the contract. Idempotent: a repeat does no harm. Destructive: a write that no tool can undo. */
function buildAnnotations(tool: Tool): NonNullable<McpTool['annotations']> {
  const isRead = tool.effect === 'read';
  const isUndoable = tool.undo.kind === 'reversible' || tool.undo.kind === 'compensable';
  return {
    readOnlyHint: isRead,
    destructiveHint: !isRead && !isUndoable,
    idempotentHint: isRead || tool.once.by === 'idempotent' || tool.repeats.policy === 'replay',
    openWorldHint: true,
  };
}

/** Clients of all revisions accept only object schemas as output schemas. */
function isObjectSchema(output: JsonObject | undefined): boolean {
  return output?.['type'] === 'object';
}

/** Schemas of what the gateway answers in place of a result: a problem, a call, a dry run. */
const GATEWAY_ANSWERS: readonly JsonObject[] = [
  { required: ['type', 'code', 'retry'], properties: { code: { type: 'string' } } },
  { required: ['txn', 'tool', 'state', 'replayed'] },
  { required: ['dryRun'], properties: { dryRun: { const: true } } },
];

/**
 * Adds the answers of the gateway to an output schema. Older clients check all structured content, also errors, and withhold from the
 * model what does not fit. A schema with references outside its definitions cannot be embedded, so it is left out.
 */
function withGatewayAnswers(output: JsonObject | undefined): JsonObject | undefined {
  if (output === undefined || !isObjectSchema(output)) return output;
  const { $schema, $defs, definitions, ...own } = output;
  if (/"\$ref":"(?!#\/(?:\$defs|definitions)\/)/.test(JSON.stringify(output))) return undefined;
  const shared = Object.entries({ $schema, $defs, definitions }).filter(([, value]) => value !== undefined);
  return { ...(Object.fromEntries(shared) as JsonObject), type: 'object', anyOf: [own, ...GATEWAY_ANSWERS] };
}
