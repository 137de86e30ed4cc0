import { describe, expect, test } from 'vitest';
import type { JsonObject } from '../../gateway/domain/json.ts';
import { compileInput } from '../../gateway/policy/input.ts';
import { compilePattern } from '../../gateway/policy/pattern.ts';
import { cpuMs } from './example.ts';

function check(schema: JsonObject, args: JsonObject): readonly string[] {
  const compiled = compileInput(schema);
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
  ])('%s is let through', (pattern) => {
    expect(compilePattern(pattern)).toHaveProperty('test');
  });

  test.each([
    ['(a+)+', 'a repetition inside a repetition'],
    ['^(a|a)*$', 'a repetition inside a repetition'],
    ['^(a?){20}$', 'a repetition inside a repetition'],
    ['(?=a)b', 'lookaround'],
    ['(?<!a)b', 'lookaround'],
    ['(a)\\1', 'a backreference'],
    ['(?<n>a)\\k<n>', 'a backreference'],
    ['a*a*a*a*b', 'anchor it'],
    ['^a?a?a?a?a?a?a?a?a?a?a?a?b', 'anchor it'],
    ['(', 'not a regular expression'],
    ['(?:a{1000}){1000}', 'too large'],
  ])('%s is refused', (pattern, why) => {
    expect(compilePattern(pattern)).toEqual({ fault: expect.stringContaining(why) });
  });

  test('text too long for its pattern does not match', () => {
    const schema = { properties: { a: { type: 'string', pattern: '^a+b*c*$' } } };
    expect(check(schema, { a: 'aabbcc' })).toEqual([]);
    expect(check(schema, { a: 'a'.repeat(100_000) })).toEqual(['args.a must match pattern "^a+b*c*$"']);
  });
});

test('every pattern is its own', () => {
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

  test('every one, without the values', () => {
    expect(check(schema, { n: 1, e: 'x' })).toEqual([]);
    expect(check(schema, { n: 0, o: { k: 4242, z: 1 }, more: 's3cret' })).toEqual([
      'args must have "e"',
      'args must not have "more"',
      'args.n must be >= 1',
      'args.o must not have "z"',
      'args.o.k must be string',
    ]);
  });

  test('both drafts, references inside, the same $id twice', () => {
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

  test('a body full of faults costs no more than it should', () => {
    const list = { properties: { l: { type: 'array', items: { type: 'string' } } } };
    const spent = cpuMs(() => {
      expect(check(list, { l: Array.from({ length: 300_000 }, () => 1) })).toEqual(['args.l.0 must be string']);
      expect(check(list, { l: Array.from({ length: 1_000 }, () => 1) })).toHaveLength(51);
    });
    expect(spent).toBeLessThan(500);
  });

  test('a schema that refers to itself is checked, and does not end the stack', () => {
    const tree = { $defs: { t: { type: 'object', properties: { l: { $ref: '#/$defs/t' } } } }, $ref: '#/$defs/t' };
    expect(check(tree, { l: { l: {} } })).toEqual([]);
    const deep = JSON.parse(`${'{"l":'.repeat(200_000)}{}${'}'.repeat(200_000)}`) as JsonObject;
    expect(check(tree, deep)).toEqual(['the arguments are nested too deeply to be checked']);
  });
});
