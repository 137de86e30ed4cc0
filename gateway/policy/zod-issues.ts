import type { z } from 'zod';
import { type Diagnostics, type DocumentPath, didYouMean, formatList, type SourceLocation } from './faults.ts';

/** Values of older policies and their names of today. */
const RENAMED_VALUES: ReadonlyMap<string, string> = new Map([['nature', 'idempotent']]);

/** One zod issue as a sentence. */
interface FormattedIssue {
  /** The path of the wrong value or, with `key`, of the wrong key. */
  readonly path: DocumentPath;
  readonly key?: true;
  readonly message: string;
}

/** How a message names the value at a path. */
type PathFormatter = (path: DocumentPath) => string;

/** Reports every issue at its position in the file. A message names a value by its last key. */
export function reportZodIssues(
  diagnostics: Diagnostics,
  location: SourceLocation,
  value: unknown,
  schema: z.ZodType,
  issues: readonly z.core.$ZodIssue[],
): void {
  const formatPath: PathFormatter = (path) => formatLastKey([...location.path, ...path]);
  const formatted = withoutConsequences(issues).flatMap((issue) => formatIssue(value, schema, issue, formatPath));
  for (const { message, path, ...key } of formatted)
    diagnostics.addError({ source: location.source, path: [...location.path, ...path], ...key }, message);
}

/** Formats issues of a value that is in no file. A message names a value by its whole path. */
export function formatZodIssues(value: unknown, schema: z.ZodType, issues: readonly z.core.$ZodIssue[]): string[] {
  const formatted = withoutConsequences(issues).flatMap((issue) => formatIssue(value, schema, issue, formatWholePath));
  return formatted.map(({ message }) => message);
}

/** A value of the wrong type is reported once: its length or bounds mean nothing. */
function withoutConsequences(issues: readonly z.core.$ZodIssue[]): readonly z.core.$ZodIssue[] {
  const wrongTypes = new Set(issues.filter(({ code }) => code === 'invalid_type').map(({ path }) => path.join('.')));
  return issues.filter(({ code, path }) => code === 'invalid_type' || !wrongTypes.has(path.join('.')));
}

function formatLastKey(path: DocumentPath): string {
  const start = path.findLastIndex((segment) => typeof segment === 'string');
  return start === -1 ? 'The file' : formatWholePath(path.slice(start));
}

function formatWholePath(path: DocumentPath): string {
  if (path.length === 0) return 'The value';
  const [head, ...rest] = path;
  return `${head}${rest.map((segment) => (typeof segment === 'number' ? `[${segment}]` : `.${segment}`)).join('')}`;
}

function formatIssue(
  value: unknown,
  schema: z.ZodType,
  issue: z.core.$ZodIssue,
  formatPath: PathFormatter,
): FormattedIssue[] {
  const path = issue.path as DocumentPath;
  const found = readValueAt(value, path);
  if (issue.code === 'unrecognized_keys') {
    const known = findKnownKeys(schema, path, found);
    return issue.keys.map((key) => ({
      path: [...path, key],
      key: true,
      message: describeUnknownKey(formatPath([...path, key]), key, known),
    }));
  }
  if (issue.code === 'invalid_key') {
    const name = path.at(-1);
    const [inner] = issue.issues;
    const isBound = inner?.code === 'too_big' || inner?.code === 'too_small';
    const problem = isBound ? describeIssue(inner, name) : `${inner?.message ?? 'is not allowed'}.`;
    return [{ path, key: true, message: `The key ${JSON.stringify(String(name).slice(0, 60))} ${problem}` }];
  }
  if (found === undefined && typeof path.at(-1) === 'string') {
    const choices = issue.code === 'invalid_value' ? issue.values.map(String) : findChoices(schema, path);
    const listing = choices.length > 0 ? ` (one of ${choices.join(', ')})` : '';
    return [{ path: path.slice(0, -1), message: `${formatPath(path)} is required${listing}.` }];
  }
  if (issue.code === 'invalid_union') {
    const choices = findChoices(schema, path);
    if (choices.length > 0) return [{ path, message: describeChoices(formatPath(path), found, choices) }];
    const branch = pickUnionBranch(issue.errors);
    if (branch !== undefined)
      return branch.flatMap((inner) =>
        formatIssue(value, schema, { ...inner, path: [...path, ...inner.path] } as z.core.$ZodIssue, formatPath),
      );
  }
  const isMapExpected = issue.code === 'invalid_type' && issue.expected === 'object';
  const known = isMapExpected ? findKnownKeys(schema, path, found) : [];
  const message = `${formatPath(path)} ${describeIssue(issue, found)}${formatKnownKeys(known)}`;
  return [{ path, message }];
}

export function describeUnknownKey(subject: string, key: string, known: readonly string[]): string {
  return `Unknown key ${JSON.stringify(subject)}.${didYouMean(key, known)}${formatKnownKeys(known)}`;
}

function formatKnownKeys(known: readonly string[]): string {
  return known.length === 0 ? '' : ` Known keys: ${formatList(known, 40)}.`;
}

function describeChoices(subject: string, found: unknown, choices: readonly string[]): string {
  const renamed = typeof found === 'string' ? RENAMED_VALUES.get(found) : undefined;
  if (renamed !== undefined && choices.includes(renamed))
    return `The value ${formatShortValue(found)} was renamed. Write ${subject}: ${renamed}.`;
  return `${subject} ${describeWrongChoice(found, choices)}`;
}

function describeWrongChoice(found: unknown, choices: readonly string[]): string {
  const near = typeof found === 'string' ? didYouMean(found, choices) : '';
  const expected = choices.length === 1 ? choices[0] : `one of ${choices.join(', ')}`;
  return `must be ${expected} (got ${formatShortValue(found)}).${near}`;
}

/** The rest of a sentence that begins with the name of the value. */
function describeIssue(issue: z.core.$ZodIssue, found: unknown): string {
  const got = `(got ${formatShortValue(found)}).`;
  switch (issue.code) {
    case 'invalid_type':
      return isOwnMessage(issue) ? `${issue.message} ${got}` : `must be ${describeType(issue.expected)} ${got}`;
    case 'invalid_value':
      return describeWrongChoice(found, issue.values.map(String));
    case 'invalid_format':
      return issue.format === 'regex'
        ? `${issue.message} ${got}`
        : `must be ${FORMAT_NAMES[issue.format] ?? issue.format} ${got}`;
    case 'too_small':
      return describeBound('at least', Number(issue.minimum), found);
    case 'too_big':
      return describeBound('at most', Number(issue.maximum), found);
    case 'invalid_union': {
      if (isOwnMessage(issue)) return `${issue.message} ${got}`;
      const expected = issue.errors.flat().flatMap(listExpected);
      return expected.length === 0 ? `is not allowed ${got}` : `must be ${expected.join(' or ')} ${got}`;
    }
    default:
      return `${issue.message}.`;
  }
}

/** Whether a schema of ours brings the message; the messages of zod itself begin with "Invalid input". */
function isOwnMessage({ message }: z.core.$ZodIssue): boolean {
  return !message.startsWith('Invalid input');
}

function listExpected(issue: z.core.$ZodIssue): string[] {
  if (issue.code === 'invalid_type') return [describeType(issue.expected)];
  return issue.code === 'invalid_value' ? issue.values.map(String) : [];
}

function describeBound(bound: string, limit: number, found: unknown): string {
  if (typeof found === 'string') return `must have ${bound} ${count(limit, 'character')} (got ${found.length}).`;
  if (Array.isArray(found)) return `must have ${bound} ${count(limit, 'item')} (got ${found.length}).`;
  return `must be ${bound} ${limit} (got ${formatShortValue(found)}).`;
}

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`;
}

/**
 * The branch of a union that the author most likely meant: one that failed below its root, else one that failed by more than
 * the type or the literal. Undefined where every branch failed at its root: the message then lists what each of them expects.
 */
function pickUnionBranch(branches: readonly (readonly z.core.$ZodIssue[])[]): readonly z.core.$ZodIssue[] | undefined {
  const deeper = branches.filter((issues) =>
    issues.every((issue) => issue.path.length > 0 || issue.code === 'unrecognized_keys'),
  );
  if (deeper.length > 0) return deeper[0];
  return branches.find((issues) => issues.every(({ code }) => code !== 'invalid_type' && code !== 'invalid_value'));
}

const TYPE_NAMES: Readonly<Record<string, string>> = {
  record: 'map',
  object: 'map',
  array: 'list',
  int: 'whole number',
};

function describeType(type: string): string {
  return `a ${TYPE_NAMES[type] ?? type}`;
}

const FORMAT_NAMES: Readonly<Record<string, string>> = {
  datetime: 'a date and time such as 2026-01-31T12:00:00Z',
  uuid: 'a UUID',
};

/** A value as a message shows it: at most 60 characters. A plain word has no quotes; text that looks like a number or boolean has. */
export function formatShortValue(value: unknown): string {
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object' && value !== null) return 'a map';
  if (value === null || value === undefined) return 'nothing';
  if (typeof value === 'string' && value.length <= 60 && isPlainWord(value)) return value;
  const json = JSON.stringify(value) ?? String(value);
  return json.length <= 60 ? json : `${json.slice(0, 57)}..."`;
}

function isPlainWord(text: string): boolean {
  return /^[\w.%/*-]*[A-Za-z%/*]$/.test(text) && !/^(?:true|false|null|nothing|a|\.nan|-?\.inf)$/i.test(text);
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

/** The keys that the schema knows at a path. In a discriminated union: the keys of the branch that the value names. */
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

/** The values of a union's discriminator, when the path ends at one. */
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
