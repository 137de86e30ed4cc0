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
      const known = parsed.success ? parsed.data : withoutUnknown(schema, value, parsed.error.issues);
      declared.set(name, { name, place, value: known });
    }
  }
  return declared;
}

/**
 * Keys that nobody knows are faults, and told as such; what stands beside them is looked at all the same. Not further inside, where
 * what is misspelled would also be told as missing.
 */
function withoutUnknown<T>(schema: z.ZodType<T>, value: unknown, issues: readonly z.core.$ZodIssue[]): T | undefined {
  const known = { ...(value as Record<string, unknown>) };
  for (const issue of issues) {
    if (issue.code !== 'unrecognized_keys' || issue.path.length > 0) return undefined;
    for (const key of issue.keys) delete known[key];
  }
  return schema.safeParse(known).data;
}

function checkName(name: string, key: keyof typeof names, place: Place, report: Report): void {
  const parsed = names[key].safeParse(name);
  if (parsed.success) return;
  const issue = parsed.error.issues[0];
  const why = issue?.code === 'too_big' ? `is longer than ${issue.maximum} characters` : issue?.message;
  report.fault({ ...place, key: true }, `${shown(name)} ${why ?? 'is not a name'}`);
}
