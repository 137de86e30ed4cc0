import type { z } from 'zod';
import { didYouMean, listed, type Path, type Place, type Report } from './faults.ts';

/** Something that zod found, in words. */
interface Said {
  /** Where the thing is that is wrong, or (`key`) its key. */
  readonly path: Path;
  readonly key?: true;
  readonly message: string;
}

/** Says what zod found in the words of a policy's author, each at its place. */
export function reportIssues(
  report: Report,
  place: Place,
  value: unknown,
  schema: z.ZodType,
  issues: readonly z.core.$ZodIssue[],
): void {
  for (const { message, path, ...key } of issues.flatMap((issue) => inWords(value, schema, issue)))
    report.fault({ source: place.source, path: [...place.path, ...path], ...key }, message);
}

/** The same of what is in no file: each after the name of what it is about. */
export function tellIssues(value: unknown, schema: z.ZodType, issues: readonly z.core.$ZodIssue[]): string[] {
  return issues
    .flatMap((issue) => inWords(value, schema, issue))
    .map(({ path, key, message }) => [(key ? path.slice(0, -1) : path).join('.'), message].filter(Boolean).join(': '));
}

function inWords(value: unknown, schema: z.ZodType, issue: z.core.$ZodIssue): Said[] {
  const path = issue.path as Path;
  const found = valueAt(value, path);
  if (issue.code === 'unrecognized_keys') {
    const known = knownKeys(schema, path, found);
    const listing = known.length > 0 ? ` (known: ${listed(known, 20)})` : '';
    return issue.keys.map((key) => ({
      path: [...path, key],
      key: true,
      message: `${JSON.stringify(key)} is not a key here${listing}${didYouMean(key, known)}`,
    }));
  }
  if (issue.code === 'invalid_union') {
    const choices = found === undefined ? [] : choicesAt(schema, path);
    if (choices.length > 0) {
      const near = typeof found === 'string' ? didYouMean(found, choices) : '';
      return [{ path, message: `${shown(found)} is not one of ${choices.join(', ')}${near}` }];
    }
    const branch = bestBranch(issue.errors);
    if (branch !== undefined)
      return branch.flatMap((inner) =>
        inWords(value, schema, { ...inner, path: [...path, ...inner.path] } as z.core.$ZodIssue),
      );
  }
  if (issue.code === 'invalid_key') {
    const reason = issue.issues[0]?.message ?? 'is not a name';
    return [{ path, key: true, message: `${shown(path.at(-1))} ${reason}` }];
  }
  const key = path.at(-1);
  if (found === undefined && typeof key === 'string')
    return [{ path: path.slice(0, -1), message: `${JSON.stringify(key)} is missing` }];
  const inside = issue.code === 'invalid_type' && issue.expected === 'object' ? knownKeys(schema, path, found) : [];
  return [
    { path, message: `${sentence(issue, found)}${inside.length > 0 ? `: it may have ${listed(inside, 20)}` : ''}` },
  ];
}

function sentence(issue: z.core.$ZodIssue, found: unknown): string {
  switch (issue.code) {
    case 'invalid_type':
      return `${shown(found)} is not ${article(issue.expected)}`;
    case 'invalid_value': {
      const values = issue.values.map(String);
      const near = typeof found === 'string' ? didYouMean(found, values) : '';
      return `${shown(found)} is not one of ${values.join(', ')}${near}`;
    }
    case 'invalid_format':
      return issue.format === 'regex' ? `${shown(found)} ${issue.message}` : `${shown(found)} is not a ${issue.format}`;
    case 'too_small':
      return `${shown(found)} is too ${sized(found) ? 'short' : 'small'}: at least ${issue.minimum}`;
    case 'too_big':
      return `${shown(found)} is too ${sized(found) ? 'long' : 'large'}: at most ${issue.maximum}`;
    case 'invalid_union': {
      const expected = issue.errors.flat().flatMap((inner) => (inner.code === 'invalid_type' ? [inner.expected] : []));
      return `${shown(found)} is not ${expected.map(article).join(' or ') || 'allowed here'}`;
    }
    default:
      return issue.message;
  }
}

/** The branch of a union that the author most likely meant: one that failed deeper than at its root. */
function bestBranch(branches: readonly (readonly z.core.$ZodIssue[])[]): readonly z.core.$ZodIssue[] | undefined {
  const deeper = branches.filter((issues) =>
    issues.every((issue) => issue.path.length > 0 || issue.code === 'unrecognized_keys'),
  );
  if (deeper.length > 0) return deeper[0];
  return branches.find((issues) => issues.every((issue) => issue.code !== 'invalid_type'));
}

function sized(value: unknown): boolean {
  return typeof value === 'string' || Array.isArray(value);
}

function article(type: string): string {
  const word =
    ({ record: 'map', object: 'map', array: 'list', int: 'whole number' } as Record<string, string>)[type] ?? type;
  return `a ${word}`;
}

/** A value as a message may show it: short, and never a long text. */
export function shown(value: unknown): string {
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object' && value !== null) return 'a map';
  if (value === null || value === undefined) return 'nothing';
  const json = JSON.stringify(value) ?? String(value);
  return json.length <= 60 ? json : `${json.slice(0, 57)}..."`;
}

function valueAt(value: unknown, path: Path): unknown {
  let found = value;
  for (const segment of path) {
    if (typeof found !== 'object' || found === null) return undefined;
    found = Object.hasOwn(found, segment) ? (found as Record<string | number, unknown>)[segment] : undefined;
  }
  return found;
}

interface Definition {
  readonly type: string;
  readonly innerType?: z.ZodType;
  readonly shape?: Record<string, z.ZodType>;
  readonly element?: z.ZodType;
  readonly valueType?: z.ZodType;
  readonly options?: readonly z.ZodType[];
  readonly discriminator?: string;
}

/** The keys that the schema knows at a path; for a choice by `by`, those of the branch that was chosen. */
function knownKeys(schema: z.ZodType, path: Path, found: unknown): string[] {
  const definition = schema.def as unknown as Definition;
  if (definition.innerType !== undefined) return knownKeys(definition.innerType, path, found);
  if (definition.options !== undefined) {
    const chosen = definition.options.filter((option) => matches(option, definition.discriminator, found));
    return [...new Set(chosen.flatMap((option) => knownKeys(option, path, found)))];
  }
  const [head, ...rest] = path;
  if (head === undefined) return Object.keys(definition.shape ?? {});
  const next = definition.shape?.[String(head)] ?? definition.element ?? definition.valueType;
  return next === undefined ? [] : knownKeys(next, rest, found);
}

/** The values of the key that a choice goes by, when the path ends at one. */
function choicesAt(schema: z.ZodType, path: Path): string[] {
  const definition = schema.def as unknown as Definition;
  if (definition.innerType !== undefined) return choicesAt(definition.innerType, path);
  const [head, ...rest] = path;
  if (definition.discriminator !== undefined && head === definition.discriminator && rest.length === 0) {
    return (definition.options ?? []).flatMap((option) => {
      const literal = (option.def as unknown as Definition).shape?.[String(head)]?.def as
        | { values?: string[] }
        | undefined;
      return literal?.values ?? [];
    });
  }
  const next = definition.shape?.[String(head)] ?? definition.element ?? definition.valueType;
  return head === undefined || next === undefined ? [] : choicesAt(next, rest);
}

function matches(option: z.ZodType, discriminator: string | undefined, found: unknown): boolean {
  if (discriminator === undefined) return true;
  const literal = (option.def as unknown as Definition).shape?.[discriminator];
  return literal === undefined || typeof found !== 'object' || found === null
    ? true
    : literal.safeParse((found as Record<string, unknown>)[discriminator]).success;
}
