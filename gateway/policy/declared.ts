import type { z } from 'zod';
import { didYouMean, listed, locate, type Place, type Report, type Source } from './faults.ts';
import { reportIssues, shown } from './issues.ts';
import {
  type AgentFile,
  agentSchema,
  names,
  type PersonFile,
  personSchema,
  policyFileSchema,
  type ToolFile,
  toolSchema,
  type UpstreamFile,
  upstreamSchema,
} from './schema.ts';

/** Something a policy file declares. `value` is absent when it cannot be read for faults; its name is known all the same. */
export interface Declared<T> {
  readonly name: string;
  readonly place: Place;
  readonly value: T | undefined;
  /** Nobody wrote it here: it comes from an OpenAPI document as it is. */
  readonly imported?: boolean;
}

export interface Declarations {
  readonly upstreams: ReadonlyMap<string, Declared<UpstreamFile>>;
  readonly tools: ReadonlyMap<string, Declared<ToolFile>>;
  readonly agents: ReadonlyMap<string, Declared<AgentFile>>;
  readonly people: ReadonlyMap<string, Declared<PersonFile>>;
}

/** Everything the files declare, each entry checked against the schema by itself, names unique over all files. */
export function collect(sources: readonly Source[], report: Report): Declarations {
  const known = Object.keys(policyFileSchema.shape);
  const good = sources.filter((source) => {
    if (source.value === null || source.value === undefined) return false;
    if (typeof source.value !== 'object' || Array.isArray(source.value)) {
      report.fault({ source, path: [] }, `${shown(source.value)} is not a policy file: write ${listed(known)}`);
      return false;
    }
    for (const key of Object.keys(source.value)) {
      if (known.includes(key)) continue;
      const place = { source, path: [key], key: true };
      report.fault(
        place,
        `${JSON.stringify(key)} is not a key here (known: ${listed(known)})${didYouMean(key, known)}`,
      );
    }
    return true;
  });
  return {
    upstreams: section(good, 'upstreams', upstreamSchema, report),
    tools: section(good, 'tools', toolSchema, report),
    agents: section(good, 'agents', agentSchema, report),
    people: section(good, 'people', personSchema, report),
  };
}

function section<T>(
  sources: readonly Source[],
  key: keyof typeof names,
  schema: z.ZodType<T>,
  report: Report,
): ReadonlyMap<string, Declared<T>> {
  const declared = new Map<string, Declared<T>>();
  for (const source of sources) {
    const entries = (source.value as Record<string, unknown>)[key];
    if (entries === undefined || entries === null) continue;
    if (typeof entries !== 'object' || Array.isArray(entries)) {
      report.fault({ source, path: [key] }, `${shown(entries)} is not a map`);
      continue;
    }
    for (const [name, value] of Object.entries(entries)) {
      const place: Place = { source, path: [key, name] };
      checkName(name, key, place, report);
      const before = declared.get(name);
      if (before !== undefined) {
        const first = locate({ ...before.place, key: true });
        report.fault(
          { ...place, key: true },
          `${JSON.stringify(name)} is already defined at ${first.file}:${first.line}:${first.column}`,
        );
        continue;
      }
      const parsed = schema.safeParse(value);
      if (!parsed.success) reportIssues(report, place, value, schema, parsed.error.issues);
      declared.set(name, { name, place, value: parsed.success ? parsed.data : withoutFaults(schema, value) });
    }
  }
  return declared;
}

/**
 * What is left of a declaration without what has faults, all of which are told: the rest of it is looked at all the same. The
 * smallest part is left out without which it can be read. Where a key was misspelled that is what it stands in, or it would be
 * told as missing too.
 */
function withoutFaults<T>(schema: z.ZodType<T>, value: unknown): T | undefined {
  let rest = value;
  for (let rounds = 0; rounds < MOST_ROUNDS && rest !== undefined; rounds++) {
    const parsed = schema.safeParse(rest);
    if (parsed.success) return parsed.data;
    // The last first: what is left out of a list moves up what follows.
    for (const issue of parsed.error.issues.toReversed()) {
      const isOnTop = issue.code === 'unrecognized_keys' && issue.path.length === 0;
      for (const path of isOnTop ? issue.keys.map((key) => [key]) : [issue.path]) rest = without(rest, path);
    }
  }
  return undefined;
}

const MOST_ROUNDS = 8;

/** Without what stands at a path; where nothing does, without what should hold it. */
function without(value: unknown, path: readonly PropertyKey[]): unknown {
  const [head, ...tail] = path;
  if (head === undefined || typeof value !== 'object' || value === null || !(head in value)) return undefined;
  const member = tail.length === 0 ? undefined : without((value as Record<PropertyKey, unknown>)[head], tail);
  if (Array.isArray(value))
    return value.flatMap((item, i) => (i !== head ? [item] : member === undefined ? [] : [member]));
  const { [head]: _, ...rest } = value as Record<PropertyKey, unknown>;
  return member === undefined ? rest : { ...rest, [head]: member };
}

function checkName(name: string, key: keyof typeof names, place: Place, report: Report): void {
  const parsed = names[key].safeParse(name);
  if (parsed.success) return;
  const issue = parsed.error.issues[0];
  const why = issue?.code === 'too_big' ? `is longer than ${issue.maximum} characters` : issue?.message;
  report.fault({ ...place, key: true }, `${shown(name)} ${why ?? 'is not a name'}`);
}
