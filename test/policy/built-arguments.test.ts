// biome-ignore-all lint/suspicious/noTemplateCurlyInString: templates are under test
import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import { listFaults, type Tool } from '../../gateway/domain/policy.ts';
import { checkBuiltArguments } from '../../gateway/policy/compile/check-built-arguments.ts';
import { compileInputSchema } from '../../gateway/policy/compile/compile-input-schema.ts';

const NAMES = ['a', 'b'];
const scalar = fc.constantFrom<Json>('x', 'y', 1, 1.5, true, null);
/** What an expression may yield: anything. */
const anyValue = fc.oneof(scalar, fc.constantFrom<Json>([], {}, ['x'], { a: 1 }));

const { schema: schemaArbitrary, objectSchema } = fc.letrec<{ schema: JsonObject; objectSchema: JsonObject }>(
  (tie) => ({
    schema: fc.oneof(
      { maxDepth: 2 },
      fc.record<JsonObject>({
        type: fc.constantFrom<Json>('string', 'integer', 'number', ['null', 'boolean']),
      } as never),
      fc.record<JsonObject>({ enum: fc.array(scalar, { minLength: 1, maxLength: 3 }) } as never),
      fc.record<JsonObject>({ type: fc.constant('array'), items: tie('schema') } as never),
      fc.record<JsonObject>({ anyOf: fc.array(tie('schema'), { minLength: 1, maxLength: 2 }) } as never),
      fc.record<JsonObject>({ allOf: fc.array(tie('schema'), { minLength: 1, maxLength: 2 }) } as never),
      fc.constant<JsonObject>({ $ref: '#/$defs/D' }),
      tie('objectSchema'),
    ),
    objectSchema: fc.record<JsonObject>(
      {
        type: fc.constant('object'),
        properties: fc.dictionary(fc.constantFrom(...NAMES), tie('schema')),
        required: fc.uniqueArray(fc.constantFrom(...NAMES)),
        additionalProperties: fc.oneof(fc.boolean(), tie('schema')),
        not: fc.constantFrom<JsonObject>({ required: ['d'] }),
      } as never,
      { requiredKeys: ['type'] },
    ),
  }),
);

/** A template, and the values of its expressions: each \`${result.vN}\` is the Nth value. */
const templateArbitrary = fc.letrec<{ part: Json; object: JsonObject }>((tie) => ({
  part: fc.oneof(
    { maxDepth: 2 },
    scalar,
    fc.integer({ min: 0, max: 4 }).map((n) => `\${result.v${n}}`),
    fc.array(tie('part'), { maxLength: 2 }) as fc.Arbitrary<Json>,
    tie('object'),
  ),
  object: fc.dictionary(fc.constantFrom(...NAMES, 'd'), tie('part'), {
    noNullPrototype: true,
  }) as fc.Arbitrary<JsonObject>,
})).object;

function fill(template: Json, values: readonly Json[]): Json {
  if (typeof template === 'string') {
    const [, index] = /^\$\{result\.v(\d)\}$/.exec(template) ?? [];
    return index === undefined ? template : (values[Number(index)] ?? null);
  }
  if (Array.isArray(template)) return template.map((item) => fill(item as Json, values));
  if (typeof template !== 'object' || template === null) return template;
  return Object.fromEntries(Object.entries(template).map(([name, member]) => [name, fill(member, values)]));
}

test('a reported fault is a fault of every call, and literal arguments have exactly the faults of their schema', () => {
  const values = fc.array(anyValue, { minLength: 5, maxLength: 5 });
  let reported = 0;
  fc.assert(
    fc.property(objectSchema, schemaArbitrary, templateArbitrary, values, (schema, definition, template, filled) => {
      const input = { type: 'object', allOf: [schema], $defs: { D: definition } };
      const compiled = compileInputSchema(input);
      // A definition that refers only to itself does not compile.
      if ('faults' in compiled) return;
      const target = { name: 'r', input, faults: compiled.check } as unknown as Tool;
      const faults = checkBuiltArguments(template, target, {});
      const isRefused = listFaults(compiled.check(fill(template, filled) as JsonObject)).length > 0;
      if (faults.length > 0) {
        reported += 1;
        expect(isRefused, JSON.stringify({ faults, input, template, filled })).toBe(true);
      } else if (!JSON.stringify(template).includes('${')) expect(isRefused).toBe(false);
    }),
    { numRuns: 150 },
  );
  expect(reported).toBeGreaterThan(15);
});

/** A random schema that accepts the value: `pick(n)` chooses one of n ways. */
function describeValue(value: Json, pick: (ways: number) => number, depth = 0): JsonObject {
  const again = (other: Json = value): JsonObject => describeValue(other, pick, depth + 1);
  const way = depth > 4 ? 0 : pick(7);
  if (way === 0) return {};
  if (way === 1) return { enum: ['other', value] };
  if (way === 2) return { anyOf: [{ type: 'null' }, again()] };
  if (way === 3) return { allOf: [again(), again()] };
  if (Array.isArray(value)) return { type: 'array', items: { anyOf: value.length === 0 ? [{}] : value.map(again) } };
  if (typeof value !== 'object' || value === null) {
    const type = value === null ? 'null' : typeof value;
    return type === 'number' && Number.isInteger(value) && way > 4
      ? { type: 'integer' }
      : { type: type === 'null' ? type : [type, 'null'] };
  }
  const members = new Map(Object.entries(value as JsonObject));
  const names = [...members.keys()];
  const listed = names.filter(() => pick(2) === 0);
  const rest = names.filter((name) => !listed.includes(name));
  return {
    type: 'object',
    properties: Object.fromEntries(
      [...listed, 'z'].map((name) => [name, name === 'z' ? {} : again(members.get(name))]),
    ),
    required: names.filter(() => pick(2) === 0),
    ...(pick(2) === 0
      ? { additionalProperties: rest.length === 0 ? false : { anyOf: rest.map((name) => again(members.get(name))) } }
      : {}),
  };
}

test('arguments that fit their schema for some values have no faults', () => {
  const values = fc.array(anyValue, { minLength: 5, maxLength: 5 });
  fc.assert(
    fc.property(templateArbitrary, values, fc.infiniteStream(fc.nat()), (template, filled, choices) => {
      const args = fill(template, filled) as JsonObject;
      const schema = describeValue(args, (ways) => choices.next().value % ways);
      const input = { type: 'object', allOf: [schema] };
      const compiled = compileInputSchema(input);
      if ('faults' in compiled) throw new Error(JSON.stringify(compiled.faults));
      expect(compiled.check(args)).toEqual([]);
      const target = { name: 'r', input, faults: compiled.check } as unknown as Tool;
      expect(checkBuiltArguments(template, target, {})).toEqual([]);
    }),
    { numRuns: 300 },
  );
});
