// biome-ignore-all lint/suspicious/noTemplateCurlyInString: templates are what is tested
import { describe, expect, test } from 'vitest';
import type { Json } from '../../gateway/domain/json.ts';
import { ExpressionError, type ExpressionScope } from '../../gateway/domain/policy.ts';
import {
  compilePath,
  compileTemplate,
  compileText,
  type TemplateCompileOptions,
} from '../../gateway/policy/expressions/compile-template.ts';

const scope: ExpressionScope = {
  args: { id: 'a b', n: 5, yes: true, nothing: null, list: [1], empty: '', up: '..' },
  result: { id: 'r' },
};

function site(faults: string[] = []): TemplateCompileOptions {
  return {
    variables: ['args', 'result'],
    reportFault: (message, path, offset) => faults.push(`${path.join('.')}@${offset}: ${message}`),
  };
}

describe('the type of a value', () => {
  test.each<[unknown, Json]>([
    ['${args.n}', 5],
    ['${args.yes}', true],
    ['${args.nothing}', null],
    ['${args.list}', [1]],
    ['${ args.n }', 5],
    ['n=${args.n}', 'n=5'],
    ['${args.n}${args.yes}', '5true'],
    ['${args.id}!', 'a b!'],
    ['', ''],
    ['plain', 'plain'],
    ['$5 {x}', '$5 {x}'],
    ['$${args.n}', '${args.n}'],
    ['a $${b} ${args.n}', 'a ${b} 5'],
    ['${"}"}', '}'],
    ['${"a\\"}" + \'}\'}x', 'a"}}x'],
    ['${"""}"}"""}', '}"}'],
    ['${{"a": {"b": args.n}}}', { a: { b: 5 } }],
    ['${{"a": 1}.a}/x', '1/x'],
    [
      { a: '${args.n}', b: ['${result.id}', 7, null, false], c: { d: 'x-${args.n}' } },
      { a: 5, b: ['r', 7, null, false], c: { d: 'x-5' } },
    ],
    [12, 12],
  ])('%j', (template, expected) => {
    const faults: string[] = [];
    const evaluate = compileTemplate(template, site(faults));
    expect(faults).toEqual([]);
    expect(evaluate(scope)).toEqual(expected);
  });

  test.each(['x${args.nothing}', 'x${args.list}', 'x${args}', '${args.n}${args.list}'])(
    '%s cannot become text',
    (template) => {
      expect(() => compileTemplate(template, site())(scope)).toThrow(ExpressionError);
    },
  );

  test('compileText always yields text', () => {
    expect(compileText('${args.n}', site())(scope)).toBe('5');
    expect(() => compileText('${args.nothing}', site())(scope)).toThrow(ExpressionError);
  });
});

describe('paths', () => {
  test.each([
    ['/charges', '/charges'],
    ['/c/${args.id}', '/c/a%20b'],
    ['/c/${args.n}/x-${args.id}.json', '/c/5/x-a%20b.json'],
  ])('%s', (template, expected) => {
    expect(compilePath(template, site())(scope)).toBe(expected);
  });

  test('a value never leaves its segment', () => {
    const path = compilePath('/c/${args.id}', site());
    expect(path({ args: { id: 'a/admin?x=1#y' } })).toBe('/c/a%2Fadmin%3Fx%3D1%23y');
    expect(path({ args: { id: '\\..x\\.y' } })).toBe('/c/%5C..x%5C.y');
    for (const id of ['', '.', '..', null, ['a'], '\ud800'])
      expect(() => path({ args: { id } })).toThrow(ExpressionError);
  });

  test.each([
    '../admin',
    'a/../admin',
    'a/..',
    'a/./b',
    '..\\admin',
    'a\\..\\b',
    '%2e%2e',
    '%2e%2e%2fadmin',
    '..%2fadmin',
    '..%5cadmin',
    '%252e%252e%252fadmin',
    '%25252e%25252e/x',
    '..;/admin',
    'a/..;x=1/admin',
    '..?x',
    'a/..#',
    'a\0b',
    'a\r\nHost: b',
    'a%00',
    'a%0d%0ab',
  ])('a value that some server could read as a path traversal is refused: %j', (id) => {
    expect(() => compilePath('/c/${args.id}', site())({ args: { id } })).toThrow(ExpressionError);
  });

  test.each(['a/b', '.well-known', '...', 'a..b', 'v1.2', '100%', '%zz', 'a;b=c', 'a%2Fb', '..a', 'a..'])(
    'a value that only resembles a path traversal is sent: %j',
    (id) => {
      expect(compilePath('/c/${args.id}', site())({ args: { id } })).toBe(`/c/${encodeURIComponent(id)}`);
    },
  );

  test('two values, or a value and the text around it, cannot form a path traversal', () => {
    const render = (template: string, a: string, b = 'b') => compilePath(template, site())({ args: { a, b } });
    expect(() => render('/c/${args.a}${args.b}', 'x/', '../y')).toThrow(ExpressionError);
    expect(() => render('/c/.${args.a}', './y')).toThrow(ExpressionError);
    expect(() => render('/c/..${args.a}', '/y')).toThrow(ExpressionError);
    expect(() => render('/c/%2e${args.a}', '%2e')).toThrow(ExpressionError);
    expect(render('/c/.${args.a}', 'y')).toBe('/c/.y');
  });
});

describe('faults', () => {
  test.each<[unknown, string[]]>([
    ['x ${args.n', ['@2: This ${ has no closing }.']],
    ['${"}', ['@0: This ${ has no closing }.']],
    ['x ${}', ['@4: The expression is empty. Write a CEL expression.']],
    ['x ${arg.n}', ['@4: Unknown variable "arg". Did you mean "args"? Known variables: args and result.']],
    [
      { a: ['${before.x}'], b: '${1 +}' },
      [
        'a.0@2: Unknown variable "before". Known variables: args and result.',
        'b@5: This is not a valid CEL expression: it ends too early.',
      ],
    ],
  ])('%j', (template, expected) => {
    const faults: string[] = [];
    compileTemplate(template, site(faults));
    expect(faults.map((fault) => fault.replace('@undefined', '@4'))).toEqual(expected);
  });
});
