import { afterEach, describe, expect, test, vi } from 'vitest';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import type { ArgumentFaults } from '../../gateway/domain/policy.ts';
import { compileInputSchema } from '../../gateway/policy/compile/compile-input-schema.ts';
import { measureExpandedSize } from '../../gateway/policy/compile/expanded-schema-size.ts';
import { compileBoundedRegex } from '../../gateway/policy/expressions/bounded-regex.ts';
import { measureCpuMs } from './example.ts';

function check(schema: JsonObject, args: JsonObject): ArgumentFaults {
  const compiled = compileInputSchema(schema);
  if ('faults' in compiled) throw new Error(JSON.stringify(compiled.faults));
  return compiled.check(args);
}

describe('patterns', () => {
  test.each([
    '^[A-Z]{3}$',
    '^ch_[A-Za-z0-9]+$',
    '^\\d{4}-\\d{2}-\\d{2}$',
    '^[^@]+@[^@]+\\.[^@]+$',
    '^(usd|eur)$',
    '^\\d+(\\.\\d+)?$',
    '^(\\d{1,3}\\.){3}\\d{1,3}$',
    'abc',
    '^\\p{L}+$',
    '^[\\]a(+*]+$',
  ])('%s is accepted', (pattern) => {
    expect(compileBoundedRegex(pattern)).toHaveProperty('test');
  });

  test.each([
    ['(a+)+', 'a repetition inside a repetition'],
    ['^(a|a)*$', 'a repetition inside a repetition'],
    ['^(a?){20}$', 'a repetition inside a repetition'],
    ['(?=a)b', 'lookaround'],
    ['(?<!a)b', 'lookaround'],
    ['(a)\\1', 'a backreference'],
    ['(?<n>a)\\k<n>', 'a backreference'],
    ['a*a*a*a*b', 'Anchor it'],
    ['^a?a?a?a?a?a?a?a?a?a?a?a?b', 'Anchor it'],
    ['(', 'not a valid regular expression'],
    ['(?:a{1000}){1000}', 'too large'],
  ])('%s is refused', (pattern, why) => {
    expect(compileBoundedRegex(pattern)).toEqual({ fault: expect.stringContaining(why) });
  });

  test('text that is too long for its pattern does not match', () => {
    const schema = { properties: { a: { type: 'string', pattern: '^a+b*c*$' } } };
    expect(check(schema, { a: 'aabbcc' })).toEqual([]);
    expect(check(schema, { a: 'a'.repeat(100_000) })).toEqual(['args.a must match pattern "^a+b*c*$"']);
  });
});

test('patterns of one schema are not confused', () => {
  const schema = {
    properties: { a: { pattern: '^a$' }, b: { pattern: '^b$' } },
    patternProperties: { '^x': { type: 'null' } },
  };
  expect(check(schema, { a: 'a', b: 'b', x1: null })).toEqual([]);
  expect(check(schema, { a: 'b', b: 'a', x1: 1 })).toEqual([
    'args.a must match pattern "^a$"',
    'args.b must match pattern "^b$"',
    'args.x1 must be null',
  ]);
});

describe('faults of arguments', () => {
  const schema: JsonObject = {
    type: 'object',
    properties: {
      n: { type: 'integer', minimum: 1 },
      e: { enum: ['x', 'y'] },
      o: { type: 'object', properties: { k: { type: 'string' } }, additionalProperties: false },
    },
    required: ['n', 'e'],
    additionalProperties: false,
  };

  test('are all reported, without the values', () => {
    expect(check(schema, { n: 1, e: 'x' })).toEqual([]);
    expect(check(schema, { n: 0, o: { k: 4242, z: 1 }, more: 's3cret' })).toEqual([
      'args must have "e"',
      'args must not have "more"',
      'args.n must be >= 1',
      'args.o must not have "z"',
      'args.o.k must be string',
    ]);
  });

  test('are found with both drafts, local references and a repeated $id', () => {
    const draft7 = {
      $schema: 'http://json-schema.org/draft-07/schema#',
      $id: 'same',
      definitions: { d: { type: 'string' } },
      properties: { a: { $ref: '#/definitions/d' } },
    };
    const draft2020 = {
      $schema: 'https://json-schema.org/draft/2020-12/schema',
      $id: 'same',
      $defs: { d: { type: 'string' } },
      properties: { a: { $ref: '#/$defs/d' } },
    };
    for (const each of [draft7, draft2020, draft7, draft2020]) {
      expect(check(each, { a: 'x' })).toEqual([]);
      expect(check(each, { a: 1 })).toEqual(['args.a must be string']);
    }
  });

  test('are found within bounded time', () => {
    const list = { properties: { l: { type: 'array', items: { type: 'string' } } } };
    const spent = measureCpuMs(() => {
      expect(check(list, { l: Array.from({ length: 300_000 }, () => 1) })).toEqual(['args.l.0 must be string']);
      expect(check(list, { l: Array.from({ length: 1_000 }, () => 1) })).toHaveLength(51);
    });
    expect(spent).toBeLessThan(500);
  });

  test('are found by a recursive schema, without a stack overflow', () => {
    const tree = { $defs: { t: { type: 'object', properties: { l: { $ref: '#/$defs/t' } } } }, $ref: '#/$defs/t' };
    expect(check(tree, { l: { l: {} } })).toEqual([]);
    const deep = JSON.parse(`${'{"l":'.repeat(200_000)}{}${'}'.repeat(200_000)}`) as JsonObject;
    expect(check(tree, deep)).toEqual(['the arguments are nested too deeply to be checked']);
  });
});

/** Without a timeout each of these checks takes minutes and blocks the process. */
describe('a check times out', () => {
  const TOO_LONG = { retryAfterMs: expect.any(Number), wasSkipped: false };
  const slow = `${'A'.repeat(4_470)}1A`;

  /** A recursive schema whose alternatives are all tried at every level. */
  const filters = (): JsonObject => {
    const not = { type: 'object', properties: { not: { $ref: '#/$defs/f' } }, required: ['not'] };
    const noted = { ...not, required: ['not', 'note'] };
    return {
      type: 'object',
      properties: { f: { $ref: '#/$defs/f' } },
      $defs: { f: { anyOf: [noted, not, { type: 'string' }] } },
    };
  };
  const nested = (depth: number, inner: Json): Json =>
    depth === 0 ? inner : { not: nested(depth - 1, inner), note: 'x' };

  afterEach(() => void vi.restoreAllMocks());

  test('and its schema is not used for ten times as long', () => {
    const schema = filters();
    expect(check(schema, { f: nested(3, 'x') })).toEqual([]);
    const began = performance.now();
    const given = check(schema, { f: nested(60, 5) });
    const took = performance.now() - began;
    expect(given).toEqual(TOO_LONG);
    expect(measureCpuMs(() => void check(schema, { f: nested(60, 5) }))).toBeLessThan(100);
    expect(check(schema, { f: nested(3, 'x') })).toEqual({ retryAfterMs: expect.any(Number), wasSkipped: true });
    expect(check(filters(), { f: nested(3, 'x') })).toEqual([]);
    // After that time the schema works again.
    const later = performance.now() + 10 * took + 1;
    vi.spyOn(performance, 'now').mockReturnValue(later);
    expect(check(schema, { f: nested(2, 5) })).toContain('args.f.not.not must be string');
  });

  test('but small arguments are still checked', () => {
    const schema = { properties: { l: { type: 'array', items: { type: 'string', pattern: '[A-Z]+$' } } } };
    expect(check(schema, { l: Array.from({ length: 234 }, () => slow) })).toEqual(TOO_LONG);
    expect(check(schema, { l: ['AB'] })).toEqual([]);
    expect(check(schema, { l: ['1'] })).toEqual(['args.l.0 must match pattern "[A-Z]+$"']);
  });

  test('but not for valid arguments that take a moment', () => {
    const kind = (i: number): JsonObject => ({
      type: 'object',
      properties: { op: { const: `op-${i}` }, path: { type: 'string' }, value: {} },
      required: ['op', 'path'],
      additionalProperties: false,
    });
    const anyOf = Array.from({ length: 20 }, (_, i) => kind(i));
    const schema = { type: 'object', properties: { ops: { type: 'array', items: { anyOf } } }, required: ['ops'] };
    const ops = Array.from({ length: 5_000 }, (_, i) => ({ op: `op-${i % 20}`, path: `/a/${i}`, value: i }));
    expect(check(schema, { ops })).toEqual([]);
  });

  test.each(['$defs', 'definitions'])('for definitions in %s that each use the next one twice', (keyword) => {
    const uses = (name: string): JsonObject => ({ $ref: `#/${keyword}/${name}` });
    const definitions: Record<string, Json> = { a60: { properties: { x: { type: 'string' } } } };
    for (let i = 0; i < 60; i++) definitions[`a${i}`] = { allOf: [uses(`a${i + 1}`), uses(`a${i + 1}`)] };
    expect(check({ type: 'object', [keyword]: definitions, allOf: [uses('a0')] }, { x: 'a' })).toEqual(TOO_LONG);
    expect(check({ type: 'object', [keyword]: definitions, allOf: [uses('a55')] }, { x: 'a' })).toEqual([]);
  });

  test('for many strings that are each within the bounds of a pattern', () => {
    const schema = { properties: { l: { type: 'array', items: { type: 'string', pattern: '[A-Z]+$' } } } };
    expect(check(schema, { l: ['A'.repeat(1_000), 'A1A'] })).toEqual([]);
    expect(check(schema, { l: Array.from({ length: 234 }, () => slow) })).toEqual(TOO_LONG);
  });

  test('for one string under many patterns', () => {
    const patterns = Array.from({ length: 500 }, () => ({ pattern: '[A-Z]+$' }));
    const schema = { properties: { s: { type: 'string', allOf: patterns } } };
    expect(check(schema, { s: 'AB' })).toEqual([]);
    expect(check(schema, { s: slow })).toEqual(TOO_LONG);
  });

  test('for many values under a large schema', () => {
    const properties = Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`p${i}`, { type: 'string' }]));
    const schema = { properties: { l: { type: 'array', items: { type: 'object', properties } } } };
    expect(check(schema, { l: [{ p1: 'x' }, {}] })).toEqual([]);
    const full = Object.fromEntries(Object.keys(properties).map((name) => [name, 'x']));
    expect(check(schema, { l: new Array(1_000_000).fill(full) })).toEqual(TOO_LONG);
  });

  test('only while it lists all faults, and then reports the first', () => {
    const minimums = Array.from({ length: 100 }, (_, i) => ({ minimum: i + 1 }));
    const faults = check(
      { properties: { l: { items: { allOf: minimums } } } },
      { l: Array.from({ length: 15_000 }, () => 0) },
    );
    if ('retryAfterMs' in faults) throw new Error('the check timed out');
    expect(faults[0]).toBe('args.l.0 must be >= 1');
    expect(faults.length).toBeLessThanOrEqual(51);
  });
});

test('measureExpandedSize counts a schema with its references expanded', () => {
  const small = { type: 'string' };
  expect(measureExpandedSize({ a: small })).toBe(3);
  expect(measureExpandedSize({ $defs: { a: small }, p: { $ref: '#/$defs/a' }, q: { $ref: '#/$defs/a' } })).toBe(10);
  expect(measureExpandedSize({ 'a/b': { '~': small }, p: { $ref: '#/a~1b/~0' } })).toBe(7);
  for (const ref of ['#', '#/p', '#anchor', '#/nowhere'])
    expect(measureExpandedSize({ p: { $ref: ref } })).toBe(Infinity);
  expect(measureExpandedSize({ p: { $dynamicRef: '#/q' }, q: small })).toBe(Infinity);
  expect(measureExpandedSize({ p: { $id: 'other', $ref: '#/q', q: small }, q: small })).toBe(Infinity);
});
