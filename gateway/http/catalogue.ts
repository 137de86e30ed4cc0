import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent, Policies, Tool } from '../domain/policy.ts';
import { canAllowTool } from '../policy/decide.ts';

/** What an agent may call, in our own shape or a model vendor's. */
export function catalogue(policies: Policies, agent: Agent, format: string | undefined): { tools: JsonObject[] } {
  const name = format ?? 'oncegate';
  const shape = Object.hasOwn(SHAPES, name) ? SHAPES[name] : undefined;
  if (shape === undefined)
    throw new GatewayError('malformed', `format must be one of ${Object.keys(SHAPES).join(', ')}.`);
  return { tools: callable(policies, agent).map(shape) };
}

export function callable(policies: Policies, agent: Agent): Tool[] {
  return [...policies.tools.values()].filter((tool) => tool.disabled === undefined && canAllowTool(agent, tool));
}

const SHAPES: Readonly<Record<string, (tool: Tool) => JsonObject>> = {
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
    function: { name: vendorName(tool.name), description: tool.description, parameters: tool.input },
  }),
  anthropic: (tool) => ({ name: vendorName(tool.name), description: tool.description, input_schema: tool.input }),
};

/** Model vendors refuse dots in tool names. */
export function vendorName(name: string): string {
  return name.replaceAll('.', '__');
}

const vendorNames = new WeakMap<Policies, ReadonlyMap<string, string>>();

/** A tool is understood under its own name and under the one that vendors are shown; so is one that does not exist. */
export function toolNamed(policies: Policies, name: string): string {
  if (policies.tools.has(name)) return name;
  let names = vendorNames.get(policies);
  if (names === undefined) {
    names = new Map([...policies.tools.keys()].map((tool) => [vendorName(tool), tool]));
    vendorNames.set(policies, names);
  }
  return names.get(name) ?? name.replaceAll('__', '.');
}
