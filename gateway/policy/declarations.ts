import type { z } from 'zod';
import { type Diagnostics, formatList, resolvePosition, type SourceFile, type SourceLocation } from './faults.ts';
import {
  type AgentDeclaration,
  agentSchema,
  nameSchemas,
  type PersonDeclaration,
  personSchema,
  policyFileSchema,
  type ToolDeclaration,
  toolSchema,
  type UpstreamDeclaration,
  upstreamSchema,
} from './policy-file-schema.ts';
import { describeUnknownKey, formatShortValue, reportZodIssues } from './zod-issues.ts';

const ENTRY_NOUNS = { upstreams: 'upstream', tools: 'tool', agents: 'agent', people: 'person' } as const;

/** An entry of a policy file. `value` is undefined when its faults leave nothing usable; the name still counts as declared. */
export interface DeclaredEntry<T> {
  readonly name: string;
  readonly location: SourceLocation;
  readonly value: T | undefined;
  /** The entry comes from an OpenAPI document; no policy file declares it. */
  readonly imported?: boolean;
}

export interface Declarations {
  readonly upstreams: ReadonlyMap<string, DeclaredEntry<UpstreamDeclaration>>;
  readonly tools: ReadonlyMap<string, DeclaredEntry<ToolDeclaration>>;
  readonly agents: ReadonlyMap<string, DeclaredEntry<AgentDeclaration>>;
  readonly people: ReadonlyMap<string, DeclaredEntry<PersonDeclaration>>;
}

/** Collects the entries of all files. Each entry is checked against its schema; names are unique over all files. */
export function collectDeclarations(sources: readonly SourceFile[], diagnostics: Diagnostics): Declarations {
  const known = Object.keys(policyFileSchema.shape);
  const usable = sources.filter((source) => {
    if (source.value === null || source.value === undefined) return false;
    if (typeof source.value !== 'object' || Array.isArray(source.value)) {
      diagnostics.addError(
        { source, path: [] },
        `A policy file must be a map with the keys ${formatList(known)} (got ${formatShortValue(source.value)}).`,
      );
      return false;
    }
    for (const key of Object.keys(source.value)) {
      if (known.includes(key)) continue;
      diagnostics.addError({ source, path: [key], key: true }, describeUnknownKey(key, key, known));
    }
    return true;
  });
  return {
    upstreams: collectSection(usable, 'upstreams', upstreamSchema, diagnostics),
    tools: collectSection(usable, 'tools', toolSchema, diagnostics),
    agents: collectSection(usable, 'agents', agentSchema, diagnostics),
    people: collectSection(usable, 'people', personSchema, diagnostics),
  };
}

function collectSection<T>(
  sources: readonly SourceFile[],
  key: keyof typeof nameSchemas,
  schema: z.ZodType<T>,
  diagnostics: Diagnostics,
): ReadonlyMap<string, DeclaredEntry<T>> {
  const declared = new Map<string, DeclaredEntry<T>>();
  for (const source of sources) {
    const entries = (source.value as Record<string, unknown>)[key];
    if (entries === undefined || entries === null) continue;
    if (typeof entries !== 'object' || Array.isArray(entries)) {
      diagnostics.addError({ source, path: [key] }, `${key} must be a map (got ${formatShortValue(entries)}).`);
      continue;
    }
    for (const [name, value] of Object.entries(entries)) {
      const location: SourceLocation = { source, path: [key, name] };
      checkName(name, key, location, diagnostics);
      const earlier = declared.get(name);
      if (earlier !== undefined) {
        const first = resolvePosition({ ...earlier.location, key: true });
        diagnostics.addError(
          { ...location, key: true },
          `The ${ENTRY_NOUNS[key]} ${JSON.stringify(name)} is already defined at ${first.file}:${first.line}:${first.column}. Rename or remove one of them.`,
        );
        continue;
      }
      const parsed = schema.safeParse(value);
      if (!parsed.success) reportZodIssues(diagnostics, location, value, schema, parsed.error.issues);
      declared.set(name, { name, location, value: parsed.success ? parsed.data : dropInvalidParts(schema, value) });
    }
  }
  return declared;
}

/**
 * Removes the parts of a declaration that have faults, so that the rest can still be checked. Every fault is reported already.
 * Removes the smallest part without which the declaration fits its schema. A map with a misspelled key is removed whole:
 * without the key, the correctly spelled one would be reported as missing too.
 */
function dropInvalidParts<T>(schema: z.ZodType<T>, value: unknown): T | undefined {
  let rest = value;
  for (let round = 0; round < MAX_ROUNDS && rest !== undefined; round++) {
    const parsed = schema.safeParse(rest);
    if (parsed.success) return parsed.data;
    // From last to first, because removing an item of a list shifts the items after it.
    for (const issue of parsed.error.issues.toReversed()) {
      const isOnTop = issue.code === 'unrecognized_keys' && issue.path.length === 0;
      for (const path of isOnTop ? issue.keys.map((key) => [key]) : [issue.path]) rest = omitPath(rest, path);
    }
  }
  return undefined;
}

const MAX_ROUNDS = 8;

/** Removes the value at a path. Where there is none, removes the map or list that should hold it. */
function omitPath(value: unknown, path: readonly PropertyKey[]): unknown {
  const [head, ...tail] = path;
  if (head === undefined || typeof value !== 'object' || value === null || !(head in value)) return undefined;
  const member = tail.length === 0 ? undefined : omitPath((value as Record<PropertyKey, unknown>)[head], tail);
  if (Array.isArray(value))
    return value.flatMap((item, i) => (i !== head ? [item] : member === undefined ? [] : [member]));
  const { [head]: _, ...rest } = value as Record<PropertyKey, unknown>;
  return member === undefined ? rest : { ...rest, [head]: member };
}

function checkName(
  name: string,
  key: keyof typeof nameSchemas,
  location: SourceLocation,
  diagnostics: Diagnostics,
): void {
  const parsed = nameSchemas[key].safeParse(name);
  if (parsed.success) return;
  const issue = parsed.error.issues[0];
  const subject = `The ${ENTRY_NOUNS[key]} name ${JSON.stringify(name.length <= 60 ? name : `${name.slice(0, 57)}...`)}`;
  const problem =
    issue?.code === 'too_big'
      ? `must have at most ${issue.maximum} characters (got ${name.length})`
      : (issue?.message ?? 'is not allowed');
  diagnostics.addError({ ...location, key: true }, `${subject} ${problem}.`);
}
