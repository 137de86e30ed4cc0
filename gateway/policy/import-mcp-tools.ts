import type { JsonObject } from '../domain/json.ts';
import type { Policies, Tool, Upstream } from '../domain/policy.ts';
import { compileInputSchemaLazily } from './compile/compile-input-schema.ts';
import { digestContract, TOOL_DEFAULTS } from './compile/compile-tool.ts';
import { MAX_MODEL_NAME_LENGTH, toModelName } from './compile/cross-check.ts';
import { deepFreeze } from './deep-freeze.ts';
import { compileGlob } from './glob.ts';
import { nameSchemas } from './policy-file-schema.ts';

/** A tool as an MCP server lists it. The server's hints about effects are ignored, because the server is not trusted. */
export interface ListedMcpTool {
  readonly name: string;
  readonly title?: string;
  readonly description?: string;
  readonly inputSchema?: JsonObject;
  readonly outputSchema?: JsonObject;
  /** Why the tool must not be called: its definition differs from the pinned one. */
  readonly disabled?: string;
}

export interface McpImportResult {
  readonly policies: Policies;
  /** Tools that match `import` and cannot be imported. `why` is one or more sentences. */
  readonly skipped: readonly { readonly name: string; readonly why: string }[];
}

/**
 * Adds the tools that `import` of an MCP upstream selects. An imported tool is a write with `once: none`, unless the policies have
 * a contract for it. A contract without a description or input schema takes those of the server.
 */
export function importMcpTools(
  policies: Policies,
  upstreamName: string,
  offered: readonly ListedMcpTool[],
): McpImportResult {
  const upstream = policies.upstreams.get(upstreamName);
  if (upstream?.import === undefined) return { policies, skipped: [] };
  const isSelected = compileGlob(upstream.import);
  const tools = new Map(policies.tools);
  const modelNames = new Set([...tools.keys()].map(toModelName));
  const skipped: { name: string; why: string }[] = [];
  for (const offer of offered) {
    if (!isSelected(offer.name)) continue;
    const name = upstream.expose === 'bare' ? offer.name : `${upstream.name}.${offer.name}`;
    const declared = policies.tools.get(name);
    const tool = declared === undefined ? buildImportedTool(upstream, name, offer) : mergeContract(declared, offer);
    const why =
      typeof tool === 'string'
        ? tool
        : declared === undefined && modelNames.has(toModelName(name))
          ? `Models would see ${name} under the name of another tool, ${toModelName(name)}.`
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
  if (
    !nameSchemas.tools.safeParse(name).success ||
    toModelName(name).length > MAX_MODEL_NAME_LENGTH ||
    name.startsWith('oncegate.')
  ) {
    return `The name ${JSON.stringify(name)} cannot be used in policies and by models: use letters, digits, _ and -, at most ${MAX_MODEL_NAME_LENGTH} characters.`;
  }
  const input = offer.inputSchema ?? TOOL_DEFAULTS.input;
  const compiled = compileInputSchemaLazily(input);
  if ('faults' in compiled) return compiled.faults.map((fault) => fault.message).join(' ');
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
    accepted: new Set(TOOL_DEFAULTS.accepted),
    redact: [],
    maxResultBytes: TOOL_DEFAULTS.maxResultBytes,
    repeats: TOOL_DEFAULTS.repeats,
    ...(upstream.untrusted === true && { untrusted: true }),
    digest: digestContract({ name, upstream: upstream.name, offer }),
  };
}

/** Completes a contract of the policies. The contract wins; the server fills in what it leaves out. */
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
