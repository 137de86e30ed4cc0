import type { JsonObject } from '../domain/json.ts';
import type { Policies, Tool, Upstream } from '../domain/policy.ts';
import { compileInputSchemaLazily } from './compile/compile-input-schema.ts';
import { digestContract, TOOL_DEFAULTS } from './compile/compile-tool.ts';
import { toModelName } from './compile/cross-check.ts';
import { deepFreeze } from './deep-freeze.ts';
import { compileGlob } from './glob.ts';
import { nameSchemas } from './policy-file-schema.ts';

/** A tool as an MCP server lists it. What the server says of its effects is a hint nobody relies on. */
export interface ListedMcpTool {
  readonly name: string;
  readonly title?: string;
  readonly description?: string;
  readonly inputSchema?: JsonObject;
  readonly outputSchema?: JsonObject;
  /** The server now says something else of it than what was pinned: it exists, and must not be called. */
  readonly disabled?: string;
}

export interface McpImportResult {
  readonly policies: Policies;
  /** Offered tools that cannot be taken in, and why. */
  readonly skipped: readonly { readonly name: string; readonly why: string }[];
}

/**
 * The policies with the tools that `import` of an MCP upstream takes in: writes that nothing makes repeatable, unless a
 * contract in the policies says better. A contract without description or input takes those of the server.
 */
export function importMcpTools(
  policies: Policies,
  upstreamName: string,
  offered: readonly ListedMcpTool[],
): McpImportResult {
  const upstream = policies.upstreams.get(upstreamName);
  if (upstream?.import === undefined) return { policies, skipped: [] };
  const wanted = compileGlob(upstream.import);
  const tools = new Map(policies.tools);
  const modelNames = new Set([...tools.keys()].map(toModelName));
  const skipped: { name: string; why: string }[] = [];
  for (const offer of offered) {
    if (!wanted(offer.name)) continue;
    const name = upstream.expose === 'bare' ? offer.name : `${upstream.name}.${offer.name}`;
    const declared = policies.tools.get(name);
    const tool = declared === undefined ? buildImportedTool(upstream, name, offer) : mergeContract(declared, offer);
    const why =
      typeof tool === 'string'
        ? tool
        : declared === undefined && modelNames.has(toModelName(name))
          ? 'another tool has this name'
          : undefined;
    if (why !== undefined) skipped.push({ name, why });
    else {
      modelNames.add(toModelName(name));
      tools.set(name, tool as Tool);
    }
  }
  return { policies: deepFreeze({ ...policies, tools }), skipped };
}

function buildImportedTool(upstream: Upstream, name: string, offer: ListedMcpTool): Tool | string {
  if (!nameSchemas.tools.safeParse(name).success || toModelName(name).length > 64 || name.startsWith('oncegate.')) {
    return 'not a name that models and policies can use';
  }
  const input = offer.inputSchema ?? TOOL_DEFAULTS.input;
  const compiled = compileInputSchemaLazily(input);
  if ('faults' in compiled) return compiled.faults.map((fault) => fault.message).join('; ');
  return {
    name,
    upstream: upstream.name,
    description: offer.description ?? '',
    ...pickListedFields(offer),
    input,
    faults: compiled.check,
    effect: 'write',
    once: { by: 'none' },
    undo: { kind: 'none', declared: false },
    locks: [],
    timeoutMs: upstream.timeoutMs,
    retry: TOOL_DEFAULTS.retry,
    noEffect: new Set(),
    redact: [],
    maxResultBytes: TOOL_DEFAULTS.maxResultBytes,
    repeats: TOOL_DEFAULTS.repeats,
    ...(upstream.untrusted === true && { untrusted: true }),
    digest: digestContract({ name, upstream: upstream.name, offer }),
  };
}

/** A contract of ours says what counts; where it is silent the server's own words are shown. */
function mergeContract(declared: Tool, offer: ListedMcpTool): Tool | string {
  const description = declared.description === '' ? (offer.description ?? '') : declared.description;
  const digest = digestContract({ contract: declared.digest, offer });
  const completed = { ...pickListedFields(offer), ...declared, description, digest };
  if (declared.input !== TOOL_DEFAULTS.input || offer.inputSchema === undefined) return completed;
  const compiled = compileInputSchemaLazily(offer.inputSchema);
  if ('faults' in compiled) return completed;
  return { ...completed, input: offer.inputSchema, faults: compiled.check };
}

function pickListedFields({
  title,
  outputSchema,
  disabled,
}: ListedMcpTool): Pick<Tool, 'title' | 'output' | 'disabled'> {
  return {
    ...(title === undefined ? {} : { title }),
    ...(outputSchema === undefined ? {} : { output: outputSchema }),
    ...(disabled === undefined ? {} : { disabled }),
  };
}
