import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent, Policies, Tool } from '../domain/policy.ts';
import { canAllowTool } from '../policy/decide.ts';

/** The tools that an agent may call, in our own format or that of a model vendor. */
export function listTools(policies: Policies, agent: Agent, format: string | undefined): { tools: JsonObject[] } {
  const name = format ?? 'oncegate';
  const formatTool = Object.hasOwn(FORMATS, name) ? FORMATS[name] : undefined;
  if (formatTool === undefined)
    throw new GatewayError('malformed', `format must be one of ${Object.keys(FORMATS).join(', ')}.`);
  return { tools: listCallableTools(policies, agent).map(formatTool) };
}

export function listCallableTools(policies: Policies, agent: Agent): Tool[] {
  return [...policies.tools.values()].filter((tool) => tool.disabled === undefined && canAllowTool(agent, tool));
}

const FORMATS: Readonly<Record<string, (tool: Tool) => JsonObject>> = {
  oncegate: (tool) => ({
    name: tool.name,
    description: tool.description,
    input: tool.input,
    effect: tool.effect,
    once: tool.effect === 'read' ? null : tool.once.by,
    undo: tool.undo.kind,
  }),
  openai: (tool) => ({
    type: 'function',
    function: { name: toVendorName(tool.name), description: tool.description, parameters: tool.input },
  }),
  anthropic: (tool) => ({ name: toVendorName(tool.name), description: tool.description, input_schema: tool.input }),
};

/** Replaces dots, which model vendors do not allow in tool names. */
export function toVendorName(name: string): string {
  return name.replaceAll('.', '__');
}

const vendorNames = new WeakMap<Policies, ReadonlyMap<string, string>>();

/** Accepts the own name and the vendor name of a tool, also for tools that do not exist. */
export function resolveToolName(policies: Policies, name: string): string {
  if (policies.tools.has(name)) return name;
  let names = vendorNames.get(policies);
  if (names === undefined) {
    names = new Map([...policies.tools.keys()].map((tool) => [toVendorName(tool), tool]));
    vendorNames.set(policies, names);
  }
  return names.get(name) ?? name.replaceAll('__', '.');
}
