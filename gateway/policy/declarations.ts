import type { z } from 'zod';
import {
  type Diagnostics,
  didYouMean,
  formatList,
  resolvePosition,
  type SourceFile,
  type SourceLocation,
} from './faults.ts';
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
import { formatShortValue, reportZodIssues } from './zod-issues.ts';

/** Something a policy file declares. `value` is absent when it cannot be read for faults; its name is known all the same. */
export interface DeclaredEntry<T> {
  readonly name: string;
  readonly place: SourceLocation;
  readonly value: T | undefined;
  /** Nobody wrote it here: it comes from an OpenAPI document as it is. */
  readonly imported?: boolean;
}

export interface Declarations {
  readonly upstreams: ReadonlyMap<string, DeclaredEntry<UpstreamDeclaration>>;
  readonly tools: ReadonlyMap<string, DeclaredEntry<ToolDeclaration>>;
  readonly agents: ReadonlyMap<string, DeclaredEntry<AgentDeclaration>>;
  readonly people: ReadonlyMap<string, DeclaredEntry<PersonDeclaration>>;
}

/** Everything the files declare, each entry checked against the schema by itself, names unique over all files. */
export function collectDeclarations(sources: readonly SourceFile[], report: Diagnostics): Declarations {
  const known = Object.keys(policyFileSchema.shape);
  const good = sources.filter((source) => {
    if (source.value === null || source.value === undefined) return false;
    if (typeof source.value !== 'object' || Array.isArray(source.value)) {
      report.addError(
        { source, path: [] },
        `${formatShortValue(source.value)} is not a policy file: write ${formatList(known)}`,
      );
      return false;
    }
    for (const key of Object.keys(source.value)) {
      if (known.includes(key)) continue;
      const place = { source, path: [key], key: true };
      report.addError(
        place,
        `${JSON.stringify(key)} is not a key here (known: ${formatList(known)})${didYouMean(key, known)}`,
      );
    }
    return true;
  });
  return {
    upstreams: collectSection(good, 'upstreams', upstreamSchema, report),
    tools: collectSection(good, 'tools', toolSchema, report),
    agents: collectSection(good, 'agents', agentSchema, report),
    people: collectSection(good, 'people', personSchema, report),
  };
}

function collectSection<T>(
  sources: readonly SourceFile[],
  key: keyof typeof nameSchemas,
  schema: z.ZodType<T>,
  report: Diagnostics,
): ReadonlyMap<string, DeclaredEntry<T>> {
  const declared = new Map<string, DeclaredEntry<T>>();
  for (const source of sources) {
    const entries = (source.value as Record<string, unknown>)[key];
    if (entries === undefined || entries === null) continue;
    if (typeof entries !== 'object' || Array.isArray(entries)) {
      report.addError({ source, path: [key] }, `${formatShortValue(entries)} is not a map`);
      continue;
    }
    for (const [name, value] of Object.entries(entries)) {
      const place: SourceLocation = { source, path: [key, name] };
      checkName(name, key, place, report);
      const before = declared.get(name);
      if (before !== undefined) {
        const first = resolvePosition({ ...before.place, key: true });
        report.addError(
          { ...place, key: true },
          `${JSON.stringify(name)} is already defined at ${first.file}:${first.line}:${first.column}`,
        );
        continue;
      }
      const parsed = schema.safeParse(value);
      if (!parsed.success) reportZodIssues(report, place, value, schema, parsed.error.issues);
      declared.set(name, { name, place, value: parsed.success ? parsed.data : dropInvalidParts(schema, value) });
    }
  }
  return declared;
}

/**
 * What is left of a declaration without what has faults, all of which are told: the rest of it is looked at all the same. The
 * smallest part is left out without which it can be read. Where a key was misspelled that is what it stands in, or it would be
 * told as missing too.
 */
function dropInvalidParts<T>(schema: z.ZodType<T>, value: unknown): T | undefined {
  let rest = value;
  for (let rounds = 0; rounds < MAX_ROUNDS && rest !== undefined; rounds++) {
    const parsed = schema.safeParse(rest);
    if (parsed.success) return parsed.data;
    // The last first: what is left out of a list moves up what follows.
    for (const issue of parsed.error.issues.toReversed()) {
      const isOnTop = issue.code === 'unrecognized_keys' && issue.path.length === 0;
      for (const path of isOnTop ? issue.keys.map((key) => [key]) : [issue.path]) rest = omitPath(rest, path);
    }
  }
  return undefined;
}

const MAX_ROUNDS = 8;

/** Without what stands at a path; where nothing does, without what should hold it. */
function omitPath(value: unknown, path: readonly PropertyKey[]): unknown {
  const [head, ...tail] = path;
  if (head === undefined || typeof value !== 'object' || value === null || !(head in value)) return undefined;
  const member = tail.length === 0 ? undefined : omitPath((value as Record<PropertyKey, unknown>)[head], tail);
  if (Array.isArray(value))
    return value.flatMap((item, i) => (i !== head ? [item] : member === undefined ? [] : [member]));
  const { [head]: _, ...rest } = value as Record<PropertyKey, unknown>;
  return member === undefined ? rest : { ...rest, [head]: member };
}

function checkName(name: string, key: keyof typeof nameSchemas, place: SourceLocation, report: Diagnostics): void {
  const parsed = nameSchemas[key].safeParse(name);
  if (parsed.success) return;
  const issue = parsed.error.issues[0];
  const why = issue?.code === 'too_big' ? `is longer than ${issue.maximum} characters` : issue?.message;
  report.addError({ ...place, key: true }, `${formatShortValue(name)} ${why ?? 'is not a name'}`);
}
