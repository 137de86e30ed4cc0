import type { Tool as McpTool } from '@modelcontextprotocol/server';
import type { Agent, Policies, Tool } from '../domain/policy.ts';
import { callable, vendorName } from '../http/catalogue.ts';
import { coversByName } from '../policy/decide.ts';
import { BUILT_IN_TOOLS } from './built-in.ts';

/** What this agent may call. What a server says of its own tools' effects is not repeated: contracts say it. */
export function toolList(policies: Policies, agent: Agent): McpTool[] {
  const builtIn = BUILT_IN_TOOLS.filter((tool) => coversByName(agent, tool)).map(
    ({ name, description, input, effect }): McpTool => ({
      name: vendorName(name),
      description,
      inputSchema: input as McpTool['inputSchema'],
      annotations: { readOnlyHint: effect === 'read', destructiveHint: false, openWorldHint: false },
    }),
  );
  return [...callable(policies, agent).map(shown), ...builtIn];
}

function shown(tool: Tool): McpTool {
  return {
    name: vendorName(tool.name),
    ...(tool.title === undefined ? {} : { title: tool.title }),
    description: tool.description,
    inputSchema: (tool.input['type'] === 'object'
      ? tool.input
      : { ...tool.input, type: 'object' }) as McpTool['inputSchema'],
    ...(hasObjectOutput(tool) ? { outputSchema: tool.output as NonNullable<McpTool['outputSchema']> } : {}),
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
    idempotentHint: isRead || tool.once.by === 'nature' || tool.repeats.policy === 'replay',
    openWorldHint: true,
  };
}

/** Clients of all revisions understand only results that are objects. */
export function hasObjectOutput(tool: Pick<Tool, 'output'>): boolean {
  return tool.output?.['type'] === 'object';
}
