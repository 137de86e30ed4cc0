import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import { ExpressionError, type ExpressionScope } from '../../gateway/domain/policy.ts';
import {
  compileCondition,
  compileExpression,
  compileNumber,
  type ScopeVariable,
} from '../../gateway/policy/expressions/compile-expression.ts';
import { measureCpuMs } from './example.ts';

const ALL: ScopeVariable[] = ['args', 'result', 'agent', 'tool', 'saga', 'run', 'now'];
const scope: ExpressionScope = {
  args: {
    amount: 5,
    half: 0.5,
    list: [1, 2, 3],
    text: 'abc',
    none: null,
    deep: { a: { b: 'c' } },
    big: 9007199254740991,
  },
  result: { id: 'r1' },
  agent: 'bot',
  tool: 't.x',
  saga: null,
  run: 'run-1',
  now: Date.UTC(2026, 0, 2, 3, 4, 5),
};

function faultsOf(
  source: string,
  sees = ALL,
  compile: typeof compileExpression | typeof compileCondition = compileExpression,
) {
  const faults: string[] = [];
  compile(source, { variables: sees, reportFault: (message, offset) => faults.push(`${offset}: ${message}`) });
  return faults;
}

function value(source: string, over: ExpressionScope = {}): Json {
  const evaluate = compileExpression(source, {
    variables: ALL,
    reportFault: (message) => {
      throw new Error(message);
    },
  });
  return evaluate({ ...scope, ...over });
}

describe('values', () => {
  test.each<[string, Json]>([
    ['args.amount * 2', 10],
    ['2 * args.amount', 10],
    ['args.amount / 2', 2.5],
    ['7 / 2', 3],
    ['args.amount % 2', 1],
    ['args.amount % args.amount', 0],
    ['args.amount - 1 + args.half', 4.5],
    ['2 + 3', 5],
    ['size(args.list) * 2', 6],
    ['args.amount == 5', true],
    ['args.amount in [1, 5]', true],
    ['2 in args.list', true],
    ['"z" in args', false],
    ['args.text + "!"', 'abc!'],
    ['args.none', null],
    ['args.none == null', true],
    ['args.text == 5', false],
    ['args.deep.a.b', 'c'],
    ['args["text"]', 'abc'],
    ['args', scope.args as Json],
    ['has(args.nothing)', false],
    ['has(args.nothing) ? args.nothing : "default"', 'default'],
    ['saga == null', true],
    ['run != null', true],
    ['agent + "/" + tool', 'bot/t.x'],
    ['args.list.map(x, x * 2)', [2, 4, 6]],
    ['args.list.filter(x, x > 1).size()', 2],
    ['args.list.all(x, x > 0) && args.list.exists(x, x == 3)', true],
    ['{"a": 1, "b": [args.text, null]}', { a: 1, b: ['abc', null] }],
    ['now > timestamp("2026-01-01T00:00:00Z")', true],
    ['now', '2026-01-02T03:04:05.000Z'],
    ['now.getHours()', 3],
    ['3u', 3],
    ['cel.bind(x, args.amount, x + x)', 10],
  ])('%s', (source, expected) => {
    expect(value(source)).toEqual(expected);
  });

  test('a plain path yields the very value, even with a key named constructor', () => {
    const args = { constructor: 1, deep: { constructor: 'x' } };
    expect(value('args', { args })).toBe(args);
    expect(value('args.deep', { args })).toBe(args.deep);
  });
});

describe('evaluation errors', () => {
  test.each([
    ['args.missing', 'missing is missing in `args.missing`'],
    ['args.missing == 1', 'missing is missing in `args.missing == 1`'],
    ['args.text.missing', 'missing is missing in `args.text.missing`'],
    ['args.amount + args.text', 'no such overload: dyn<double> + dyn<string> in `args.amount + args.text`'],
    ['args.amount / 0', 'a result is not a finite number in `args.amount / 0`'],
    ['1 / 0', 'division by zero in `1 / 0`'],
    ['args.big + 1', 'a result loses precision in `args.big + 1`'],
    ['9223372036854775807', 'an integer is too large to be exact in `9223372036854775807`'],
    ['args.list[7]', 'index out of bounds in `args.list[7]`'],
    ['duration("1s")', 'a result is not a JSON value in `duration("1s")`'],
    ['now.getHours("Nowhere/Here")', 'a value is out of bounds in `now.getHours("Nowhere/Here")`'],
  ])('%s', (source, message) => {
    expect(() => value(source)).toThrow(new ExpressionError(message));
  });

  test('a message never quotes an argument', () => {
    const args = { card: '4242424242424242' };
    for (const source of ['bool(args.card)', 'duration(args.card)', '{"a": 1}[args.card]', 'timestamp(args.card)']) {
      expect(() => value(source, { args })).toThrow(ExpressionError);
      try {
        value(source, { args });
      } catch (error) {
        expect((error as Error).message).not.toContain('4242');
      }
    }
  });

  test('an absent variable is unknown, not null', () => {
    const evaluate = compileExpression('result.id', { variables: ['result'], reportFault: () => undefined });
    expect(() => evaluate({})).toThrow(ExpressionError);
  });
});

describe('has() with required owners', () => {
  const evaluate = (source: string, hasOwner: 'object' | 'object_or_null', result: Json): unknown => {
    const expression = compileCondition(source, { variables: ['result'], hasOwner, reportFault: expect.unreachable });
    try {
      return expression({ result });
    } catch (error) {
      return (error as Error).message;
    }
  };
  const FAILS = expect.stringMatching(/is read of a value that is not an object|is missing/);

  test.each<[source: string, result: Json, strict: unknown, orNull: unknown]>([
    ['has(result.a)', { a: null }, true, true],
    ['has(result.a)', {}, false, false],
    ['has(result.a)', null, FAILS, false],
    ['has(result.a)', 'text', FAILS, FAILS],
    ['has(result.a)', [{ a: 1 }], FAILS, FAILS],
    ['has(result.a)', 7, FAILS, FAILS],
    ['has(result.a.b)', { a: { b: 1 } }, true, true],
    ['has(result.a.b)', { a: null }, FAILS, false],
    ['has(result.a.b)', { a: 'text' }, FAILS, FAILS],
    ['has(result.a.b)', {}, FAILS, FAILS],
    ['!has(result.a) || result.a == 1', 'text', FAILS, FAILS],
    ['[1].exists(x, has(result.a))', 'text', FAILS, FAILS],
  ])('%s of %j', (source, result, strict, orNull) => {
    expect(evaluate(source, 'object', result)).toEqual(strict);
    expect(evaluate(source, 'object_or_null', result)).toEqual(orNull);
  });
});

describe('faults at load', () => {
  test.each<[string, string[]]>([
    ['', ['undefined: The expression is empty. Write a CEL expression.']],
    ['args.amount >', ['13: This is not a valid CEL expression: it ends too early.']],
    ['size(args.names', ['15: This is not a valid CEL expression: it ends too early, before ")".']],
    ['args.', ['5: This is not a valid CEL expression: it ends too early, before a name.']],
    ['amount > 5', ['0: Unknown variable "amount". Known variables: args, result, agent, tool, saga, run and now.']],
    [
      '1 + arg.x',
      [
        '4: Unknown variable "arg". Did you mean "args"? Known variables: args, result, agent, tool, saga, run and now.',
      ],
    ],
    ['before.x', ['0: Unknown variable "before". Known variables: args, result, agent, tool, saga, run and now.']],
    [
      'env.TOKEN',
      [
        '0: env can be used only for credentials: in url, headers, env and command of an upstream, in keys, jwt and voters.',
      ],
    ],
    [
      'args.text.matches("a+")',
      [
        '0: matches() is not allowed, because a regular expression can stall the gateway. Use contains(), startsWith() or endsWith().',
      ],
    ],
    [
      'args.list.all(x, args.list.exists(y, x == y))',
      ['17: exists() must not be used inside another list macro, because its cost would have no bound.'],
    ],
    ['args.list.all(args, true)', ['14: The name args is already a variable. Choose another name.']],
    ['{"constructor": 1}', ['1: A map key must not be "constructor".']],
    ['{args.text: 1}', ['1: A map key must be a string literal.']],
    ['"a" + 1', ['0: This is not a valid CEL expression: no such overload: string + int.']],
    ['nope(1)', ["0: This is not a valid CEL expression: found no matching overload for 'nope(int)'."]],
    [`${'('.repeat(60)}1${')'.repeat(60)}`, ['40: This is not a valid CEL expression: Exceeded maxDepth (40).']],
    [`1${'+1'.repeat(500)}`, ['0: This is not a valid CEL expression: Exceeded maxAstNodes (400).']],
    [`"${'x'.repeat(5000)}"`, ['undefined: The expression must have at most 4096 characters (got 5002).']],
  ])('%s', (source, faults) => {
    expect(faultsOf(source)).toEqual(faults);
  });

  test('a condition must yield true or false', () => {
    expect(faultsOf('args.amount > 5', ALL, compileCondition)).toEqual([]);
    expect(faultsOf('args.flag', ALL, compileCondition)).toEqual([]);
    expect(faultsOf('"yes"', ALL, compileCondition)).toEqual([
      '0: The expression must yield true or false (got string).',
    ]);
    const flag = compileCondition('args.flag', { variables: ALL, reportFault: () => undefined });
    expect(flag({ args: { flag: true } })).toBe(true);
    expect(() => flag({ args: { flag: 'true' } })).toThrow(
      new ExpressionError('`args.flag` does not yield true or false'),
    );
  });

  test('a sum must yield a number', () => {
    const sum = compileNumber('args.amount', { variables: ALL, reportFault: () => undefined });
    expect(sum({ args: { amount: 3 } })).toBe(3);
    expect(() => sum({ args: { amount: '3' } })).toThrow(ExpressionError);
  });

  test('the arguments that are read without has() are reported', () => {
    const reads: string[] = [];
    compileExpression('args.a + args["b"] + (has(args.c) ? args.c : 0) + size(args.list.map(x, x.d + args.e))', {
      variables: ALL,
      reportFault: () => undefined,
      reportArgumentRead: (name) => reads.push(name),
    });
    expect(reads).toEqual(['a', 'b', 'list', 'e']);
  });
});

describe('an expression that is too costly', () => {
  const large = {
    list: Array.from({ length: 120_000 }, (_, index) => `x${index}`),
    few: Array.from({ length: 90 }, (_, index) => `x${index}`),
    numbers: Array.from({ length: 200_000 }, (_, index) => index),
    text: 'a'.repeat(500_000),
    needle: `b${'a'.repeat(200_000)}`,
    digits: '1'.repeat(500_000),
    deep: JSON.parse(`${'['.repeat(3000)}${']'.repeat(3000)}`) as Json,
  };

  test.each([
    'args.list.exists(x, args.text.contains(x))',
    'args.list.exists(x, args.list == args.numbers)',
    'args.list.exists(x, x in args.numbers)',
    'args.numbers.exists(x, x.kind == "a")',
    'args.numbers.all(x, x.a || x.b)',
    'args.list.map(x, args.list + args.list)',
    'args.list.map(x, args.text).join(",")',
    'args.list.map(x, args.list)',
    'args.text.lastIndexOf(args.needle)',
    'args.needle in args.text.split("")',
    'duration(args.digits) == duration("1s")',
    'args.numbers.filter(x, now.getHours("Europe/Berlin") == 1)',
    'cel.bind(a, args.list + args.list, cel.bind(b, a + a, cel.bind(c, b + b, cel.bind(d, c + c, size(d + d)))))',
    '[args, args, args, args, args, args, args, args]',
    'args.few.map(x, {"to": x, "body": args.text})',
    'args.few.map(x, args.text)',
    'args.few.join(args.text)',
    'size(args.few.join(args.text)) > 3',
    'size(args.few.map(x, args.text).join()) > 3',
  ])('%s', (source) => {
    const spent = measureCpuMs(() => expect(() => value(source, { args: large })).toThrow(ExpressionError));
    expect(spent).toBeLessThan(250);
  });

  test('large arguments alone are not too costly', () => {
    expect(value('size(args.list)', { args: large })).toBe(120_000);
    expect(value('args.text.startsWith("aaa") && args.text.contains("aab")', { args: large })).toBe(false);
    expect(value('args.numbers.exists(x, x == 77)', { args: { numbers: large.numbers.slice(0, 40_000) } })).toBe(true);
    expect(value('"x7" in args.list', { args: large })).toBe(true);
    expect(
      value('args.few.map(x, {"to": x, "body": args.needle})', { args: { ...large, needle: 'x'.repeat(50_000) } }),
    ).toHaveLength(90);
    expect(value('args.text + args.text', { args: large })).toHaveLength(1_000_000);
  });
});

test('the fast path agrees with the interpreter', () => {
  const path = fc.constantFrom('args.a', 'args.b', 'args.o.k', 'args.missing', 'args.o');
  const literal = fc.constantFrom('1', '2', '1.5', '-1', '"x"', '"1"', 'true', 'null', '9007199254740993');
  const comparison = fc
    .tuple(path, fc.constantFrom('==', '!=', '<', '<=', '>', '>='), literal)
    .map((parts) => parts.join(' '));
  const expression = fc.letrec<{ node: string }>((tie) => ({
    node: fc.oneof(
      { depthSize: 'small', withCrossShrink: true },
      comparison,
      comparison.map((inner) => `!(${inner})`),
      fc.tuple(tie('node'), fc.constantFrom('&&', '||'), tie('node')).map((parts) => `(${parts.join(' ')})`),
    ),
  })).node;
  const json = fc.constantFrom<Json>(0, 1, 2, 1.5, -1, 'x', '1', true, false, null, [1], { k: 1 }, 9007199254740991);
  const record = fc.record({ a: json, b: json, o: fc.oneof(json, fc.record({ k: json })) }, { requiredKeys: ['a'] });
  const compile = (source: string) => {
    const faults: string[] = [];
    const evaluate = compileCondition(source, { variables: ALL, reportFault: (message) => faults.push(message) });
    return { evaluate, faults };
  };
  const outcome = (evaluate: (scope: ExpressionScope) => boolean, args: JsonObject): boolean | 'error' => {
    try {
      return evaluate({ args });
    } catch {
      return 'error';
    }
  };
  fc.assert(
    fc.property(expression, record, (source, args) => {
      const quick = compile(source);
      // A ternary has no fast path and yields the same.
      const slow = compile(`(${source}) ? true : false`);
      if (quick.faults.length > 0) return;
      expect(outcome(quick.evaluate, args as JsonObject)).toBe(outcome(slow.evaluate, args as JsonObject));
    }),
    { numRuns: 5_000 },
  );
});
