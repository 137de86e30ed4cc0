import type { JsonObject } from '../domain/json.ts';
import type { Policies, Tool, Upstream } from '../domain/policy.ts';
import { contractDigest, TOOL_DEFAULTS } from './compile-tool.ts';
import { freezeDeeply } from './freeze.ts';
import { globMatcher } from './glob.ts';
import { compileInputLater } from './input.ts';
import { modelName } from './link.ts';
import { names } from './schema.ts';

/** A tool as an MCP server lists it. What the server says of its effects is a hint nobody relies on. */
export interface OfferedTool {
  readonly name: string;
  readonly title?: string;
  readonly description?: string;
  readonly inputSchema?: JsonObject;
  readonly outputSchema?: JsonObject;
  /** The server now says something else of it than what was pinned: it exists, and must not be called. */
  readonly disabled?: string;
}

export interface Imported {
  readonly policies: Policies;
  /** Offered tools that cannot be taken in, and why. */
  readonly skipped: readonly { readonly name: string; readonly why: string }[];
}

/**
 * The policies with the tools that `import` of an MCP upstream takes in: writes that nothing makes repeatable, unless a
 * contract in the policies says better. A contract without description or input takes those of the server.
 */
export function withImported(policies: Policies, upstreamName: string, offered: readonly OfferedTool[]): Imported {
  const upstream = policies.upstreams.get(upstreamName);
  if (upstream?.import === undefined) return { policies, skipped: [] };
  const wanted = globMatcher(upstream.import);
  const tools = new Map(policies.tools);
  const modelNames = new Set([...tools.keys()].map(modelName));
  const skipped: { name: string; why: string }[] = [];
  for (const offer of offered) {
    if (!wanted(offer.name)) continue;
    const name = upstream.expose === 'bare' ? offer.name : `${upstream.name}.${offer.name}`;
    const declared = policies.tools.get(name);
    const tool = declared === undefined ? importTool(upstream, name, offer) : complete(declared, offer);
    const why =
      typeof tool === 'string'
        ? tool
        : declared === undefined && modelNames.has(modelName(name))
          ? 'another tool has this name'
          : undefined;
    if (why !== undefined) skipped.push({ name, why });
    else {
      modelNames.add(modelName(name));
      tools.set(name, tool as Tool);
    }
  }
  return { policies: freezeDeeply({ ...policies, tools }), skipped };
}

function importTool(upstream: Upstream, name: string, offer: OfferedTool): Tool | string {
  if (!names.tools.safeParse(name).success || modelName(name).length > 64 || name.startsWith('oncegate.')) {
    return 'not a name that models and policies can use';
  }
  const input = offer.inputSchema ?? TOOL_DEFAULTS.input;
  const compiled = compileInputLater(input);
  if ('faults' in compiled) return compiled.faults.map((fault) => fault.message).join('; ');
  return {
    name,
    upstream: upstream.name,
    description: offer.description ?? '',
    ...shownOf(offer),
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
    digest: contractDigest({ name, upstream: upstream.name, offer }),
  };
}

/** A contract of ours says what counts; where it is silent the server's own words are shown. */
function complete(declared: Tool, offer: OfferedTool): Tool | string {
  const description = declared.description === '' ? (offer.description ?? '') : declared.description;
  const digest = contractDigest({ contract: declared.digest, offer });
  const completed = { ...shownOf(offer), ...declared, description, digest };
  if (declared.input !== TOOL_DEFAULTS.input || offer.inputSchema === undefined) return completed;
  const compiled = compileInputLater(offer.inputSchema);
  if ('faults' in compiled) return completed;
  return { ...completed, input: offer.inputSchema, faults: compiled.check };
}

function shownOf({ title, outputSchema, disabled }: OfferedTool): Pick<Tool, 'title' | 'output' | 'disabled'> {
  return {
    ...(title === undefined ? {} : { title }),
    ...(outputSchema === undefined ? {} : { output: outputSchema }),
    ...(disabled === undefined ? {} : { disabled }),
  };
}
