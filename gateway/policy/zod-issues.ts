import type { z } from 'zod';
import { type Diagnostics, type DocumentPath, didYouMean, formatList, type SourceLocation } from './faults.ts';

/** Values of older policies that have another name now. */
const RENAMED_VALUES: ReadonlyMap<string, string> = new Map([['nature', 'idempotent']]);

/** Something that zod found, in words. */
interface FormattedIssue {
  /** Where the thing is that is wrong, or (`key`) its key. */
  readonly path: DocumentPath;
  readonly key?: true;
  readonly message: string;
}

/** Says what zod found in the words of a policy's author, each at its place. */
export function reportZodIssues(
  report: Diagnostics,
  place: SourceLocation,
  value: unknown,
  schema: z.ZodType,
  issues: readonly z.core.$ZodIssue[],
): void {
  for (const { message, path, ...key } of issues.flatMap((issue) => formatIssue(value, schema, issue)))
    report.addError({ source: place.source, path: [...place.path, ...path], ...key }, message);
}

/** The same of what is in no file: each after the name of what it is about. */
export function formatZodIssues(value: unknown, schema: z.ZodType, issues: readonly z.core.$ZodIssue[]): string[] {
  return issues
    .flatMap((issue) => formatIssue(value, schema, issue))
    .map(({ path, key, message }) => [(key ? path.slice(0, -1) : path).join('.'), message].filter(Boolean).join(': '));
}

function formatIssue(value: unknown, schema: z.ZodType, issue: z.core.$ZodIssue): FormattedIssue[] {
  const path = issue.path as DocumentPath;
  const found = readValueAt(value, path);
  if (issue.code === 'unrecognized_keys') {
    const known = findKnownKeys(schema, path, found);
    const listing = known.length > 0 ? ` (known: ${formatList(known, 20)})` : '';
    return issue.keys.map((key) => ({
      path: [...path, key],
      key: true,
      message: `${JSON.stringify(key)} is not a key here${listing}${didYouMean(key, known)}`,
    }));
  }
  if (issue.code === 'invalid_union') {
    const choices = found === undefined ? [] : findChoices(schema, path);
    if (choices.length > 0) {
      const renamed = typeof found === 'string' ? RENAMED_VALUES.get(found) : undefined;
      if (renamed !== undefined && choices.includes(renamed))
        return [{ path, message: `${formatShortValue(found)} was renamed: write ${renamed}` }];
      const near = typeof found === 'string' ? didYouMean(found, choices) : '';
      return [{ path, message: `${formatShortValue(found)} is not one of ${choices.join(', ')}${near}` }];
    }
    const branch = pickUnionBranch(issue.errors);
    if (branch !== undefined)
      return branch.flatMap((inner) =>
        formatIssue(value, schema, { ...inner, path: [...path, ...inner.path] } as z.core.$ZodIssue),
      );
  }
  if (issue.code === 'invalid_key') {
    const reason = issue.issues[0]?.message ?? 'is not a name';
    return [{ path, key: true, message: `${formatShortValue(path.at(-1))} ${reason}` }];
  }
  const key = path.at(-1);
  if (found === undefined && typeof key === 'string')
    return [{ path: path.slice(0, -1), message: `${JSON.stringify(key)} is missing` }];
  const inside = issue.code === 'invalid_type' && issue.expected === 'object' ? findKnownKeys(schema, path, found) : [];
  return [
    {
      path,
      message: `${describeIssue(issue, found)}${inside.length > 0 ? `: it may have ${formatList(inside, 20)}` : ''}`,
    },
  ];
}

function describeIssue(issue: z.core.$ZodIssue, found: unknown): string {
  switch (issue.code) {
    case 'invalid_type':
      return `${formatShortValue(found)} is not ${addArticle(issue.expected)}`;
    case 'invalid_value': {
      const values = issue.values.map(String);
      const near = typeof found === 'string' ? didYouMean(found, values) : '';
      return `${formatShortValue(found)} is not one of ${values.join(', ')}${near}`;
    }
    case 'invalid_format':
      return issue.format === 'regex'
        ? `${formatShortValue(found)} ${issue.message}`
        : `${formatShortValue(found)} is not a ${issue.format}`;
    case 'too_small':
      return `${formatShortValue(found)} is too ${hasLength(found) ? 'short' : 'small'}: at least ${issue.minimum}`;
    case 'too_big':
      return `${formatShortValue(found)} is too ${hasLength(found) ? 'long' : 'large'}: at most ${issue.maximum}`;
    case 'invalid_union': {
      const expected = issue.errors.flat().flatMap((inner) => (inner.code === 'invalid_type' ? [inner.expected] : []));
      return `${formatShortValue(found)} is not ${expected.map(addArticle).join(' or ') || 'allowed here'}`;
    }
    default:
      return issue.message;
  }
}

/** The branch of a union that the author most likely meant: one that failed deeper than at its root. */
function pickUnionBranch(branches: readonly (readonly z.core.$ZodIssue[])[]): readonly z.core.$ZodIssue[] | undefined {
  const deeper = branches.filter((issues) =>
    issues.every((issue) => issue.path.length > 0 || issue.code === 'unrecognized_keys'),
  );
  if (deeper.length > 0) return deeper[0];
  return branches.find((issues) => issues.every((issue) => issue.code !== 'invalid_type'));
}

function hasLength(value: unknown): boolean {
  return typeof value === 'string' || Array.isArray(value);
}

function addArticle(type: string): string {
  const word =
    ({ record: 'map', object: 'map', array: 'list', int: 'whole number' } as Record<string, string>)[type] ?? type;
  return `a ${word}`;
}

/** A value as a message may show it: short, and never a long text. */
export function formatShortValue(value: unknown): string {
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object' && value !== null) return 'a map';
  if (value === null || value === undefined) return 'nothing';
  const json = JSON.stringify(value) ?? String(value);
  return json.length <= 60 ? json : `${json.slice(0, 57)}..."`;
}

function readValueAt(value: unknown, path: DocumentPath): unknown {
  let found = value;
  for (const segment of path) {
    if (typeof found !== 'object' || found === null) return undefined;
    found = Object.hasOwn(found, segment) ? (found as Record<string | number, unknown>)[segment] : undefined;
  }
  return found;
}

interface ZodDefinition {
  readonly type: string;
  readonly innerType?: z.ZodType;
  readonly shape?: Record<string, z.ZodType>;
  readonly element?: z.ZodType;
  readonly valueType?: z.ZodType;
  readonly options?: readonly z.ZodType[];
  readonly discriminator?: string;
}

/** The keys that the schema knows at a path; for a choice by `by`, those of the branch that was chosen. */
function findKnownKeys(schema: z.ZodType, path: DocumentPath, found: unknown): string[] {
  const definition = schema.def as unknown as ZodDefinition;
  if (definition.innerType !== undefined) return findKnownKeys(definition.innerType, path, found);
  if (definition.options !== undefined) {
    const chosen = definition.options.filter((option) => matchesDiscriminator(option, definition.discriminator, found));
    return [...new Set(chosen.flatMap((option) => findKnownKeys(option, path, found)))];
  }
  const [head, ...rest] = path;
  if (head === undefined) return Object.keys(definition.shape ?? {});
  const next = definition.shape?.[String(head)] ?? definition.element ?? definition.valueType;
  return next === undefined ? [] : findKnownKeys(next, rest, found);
}

/** The values of the key that a choice goes by, when the path ends at one. */
function findChoices(schema: z.ZodType, path: DocumentPath): string[] {
  const definition = schema.def as unknown as ZodDefinition;
  if (definition.innerType !== undefined) return findChoices(definition.innerType, path);
  const [head, ...rest] = path;
  if (definition.discriminator !== undefined && head === definition.discriminator && rest.length === 0) {
    return (definition.options ?? []).flatMap((option) => {
      const literal = (option.def as unknown as ZodDefinition).shape?.[String(head)]?.def as
        | { values?: string[] }
        | undefined;
      return literal?.values ?? [];
    });
  }
  const next = definition.shape?.[String(head)] ?? definition.element ?? definition.valueType;
  return head === undefined || next === undefined ? [] : findChoices(next, rest);
}

function matchesDiscriminator(option: z.ZodType, discriminator: string | undefined, found: unknown): boolean {
  if (discriminator === undefined) return true;
  const literal = (option.def as unknown as ZodDefinition).shape?.[discriminator];
  return literal === undefined || typeof found !== 'object' || found === null
    ? true
    : literal.safeParse((found as Record<string, unknown>)[discriminator]).success;
}
