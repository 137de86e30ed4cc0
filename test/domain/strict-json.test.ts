import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseStrictJson, StrictJsonError } from '../../gateway/domain/strict-json.ts';

const nested = (depth: number) => '['.repeat(depth) + ']'.repeat(depth);
const million = (character: string) => character.repeat(1_000_000);

/** Any accepted JSON value: whole code points, no `__proto__`. */
const json = fc
  .jsonValue({ stringUnit: 'binary', maxDepth: 5 })
  .filter((value) => !JSON.stringify(value).includes('__proto__'));

function refusal(input: Buffer | string, limits?: { maxDepth?: number }): string {
  try {
    parseStrictJson(input, limits);
  } catch (error) {
    expect(error).toBeInstanceOf(StrictJsonError);
    return (error as StrictJsonError).message;
  }
  throw new Error('accepted');
}

describe('accepts', () => {
  it.each<[string, unknown]>([
    ['null', null],
    [' \t\r\n true \n', true],
    ['false', false],
    ['""', ''],
    ['[]', []],
    ['{}', {}],
    ['[ ]', []],
    ['{ }', {}],
    ['[1 , [2] ,{"a" : 3 } ]', [1, [2], { a: 3 }]],
    ['{"a":{"b":[]},"c":null}', { a: { b: [] }, c: null }],
    ['"\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9"', '"\\/\b\f\n\r\tAé'],
    ['"plain then \\n escaped é"', 'plain then \n escaped é'],
    ['"\\ud83d\\ude00"', '😀'],
    ['"\\uD83D\\uDE00\\ud83d\\ude00"', '😀😀'],
    ['"😀\u2028\u2029\u007f"', '😀\u2028\u2029\u007f'],
    ['"\\u0000"', '\u0000'],
    ['"\ufeff"', '\ufeff'],
    [
      '{"toString":1,"constructor":2,"hasOwnProperty":3,"":4}',
      { toString: 1, constructor: 2, hasOwnProperty: 3, '': 4 },
    ],
    ['{"2":"b","1":"a"}', { 1: 'a', 2: 'b' }],
    ['{"a":1,"A":2,"a ":3}', { a: 1, A: 2, 'a ': 3 }],
    ['[{"a":1},{"a":2}]', [{ a: 1 }, { a: 2 }]],
    ['{"a":{"a":{"a":1}}}', { a: { a: { a: 1 } } }],
  ])('%j', (text, value) => {
    expect(parseStrictJson(text)).toStrictEqual(value);
    expect(parseStrictJson(Buffer.from(text))).toStrictEqual(value);
  });

  it.each<[string, number]>([
    ['0', 0],
    ['-0', 0],
    ['-0.0', 0],
    ['-0e5', 0],
    ['0e999999999', 0],
    ['0.00000000000000000000', 0],
    ['-1', -1],
    ['1.10', 1.1],
    ['19.99', 19.99],
    ['-0.3', -0.3],
    ['1e2', 100],
    ['1E+2', 100],
    ['100.0', 100],
    ['100e-2', 1],
    ['999999999999999', 999999999999999],
    ['99999999999.9999', 99999999999.9999],
    ['0.000000000000001', 1e-15],
    ['9007199254740991', 9007199254740991],
    ['9007199254740992', 9007199254740992],
    ['9007199254740994', 9007199254740994],
    ['0.1', 0.1],
    ['0.30000000000000004', 0.30000000000000004],
    ['0.100000000000000000000000', 0.1],
    ['123456789012345680000', 123456789012345680000],
    ['1e21', 1e21],
    ['1000000000000000000000', 1e21],
    ['1.7976931348623157e308', Number.MAX_VALUE],
    ['5e-324', 5e-324],
    ['2.2250738585072014e-308', 2.2250738585072014e-308],
  ])('the number %s', (text, value) => {
    expect(parseStrictJson(text)).toBe(value);
    expect(parseStrictJson(`[${text}]`)).toStrictEqual([value]);
  });

  it('64 levels, or as many as maxDepth allows', () => {
    expect(parseStrictJson(nested(64))).toStrictEqual(JSON.parse(nested(64)));
    expect(parseStrictJson(nested(3), { maxDepth: 3 })).toStrictEqual([[[]]]);
    expect(parseStrictJson('1', { maxDepth: 0 })).toBe(1);
    expect(parseStrictJson(nested(1000), { maxDepth: 1000 })).toStrictEqual(JSON.parse(nested(1000)));
    // Depth counts nesting, not the number of arrays.
    expect(parseStrictJson(`[${'[],{},'.repeat(100)}1]`)).toHaveLength(201);
  });

  it('and returns ordinary objects with inherited members', () => {
    const value = parseStrictJson('{"a":1}');
    expect(Object.getPrototypeOf(value)).toBe(Object.prototype);
  });

  it('an inherited name as a key, once', () => {
    expect(refusal('{"toString":1,"toString":2}')).toContain('"toString" occurs twice');
  });
});

describe('refuses, and says what is wrong, where, and what to send', () => {
  it.each<[string, string]>([
    ['', '$ (line 1, column 1): the text ends where a value is expected'],
    ['  ', 'the text ends where a value is expected'],
    ['\ufeff{}', 'byte order mark; send the JSON without it'],
    ['{} x', '$ (line 1, column 4): found "x" after the end of the document; send one value only'],
    ['1 2', 'after the end of the document'],
    ['{}{}', 'after the end of the document'],
    ['truex', 'after the end of the document'],
    ['1\u0000', 'after the end of the document'],
    ['\u00a01', 'where a value is expected'],
    ['NaN', 'found "N" where a value is expected'],
    ['nul', 'found "n" where a value is expected'],
    ['Infinity', 'where a value is expected'],
    ['-Infinity', 'a minus without a number; a digit must follow'],
    ['undefined', 'where a value is expected'],
    ['TRUE', 'where a value is expected'],
    ["'a'", 'a "double-quoted" string'],
    ['// note\n1', 'found "/" where a value is expected'],
    ['[1 /* note */]', 'where "," or "]" is expected'],
    ['[1,]', 'a comma before "]"; leave out the last comma'],
    ['{"a":1,}', 'a comma before "}"; leave out the last comma'],
    ['[,1]', 'found "," where a value is expected'],
    ['[1,,2]', '$[1] (line 1, column 4): found "," where a value is expected'],
    ['[1 2]', 'where "," or "]" is expected'],
    ['[1}', 'where "," or "]" is expected'],
    ['{"a":1]', 'where "," or "}" is expected'],
    ['{"a" 1}', 'where ":" is expected after the key'],
    ['{"a":}', 'where a value is expected'],
    ['{a:1}', 'found "a" where a key is expected'],
    ['{1:1}', 'where a key is expected'],
    ['{,}', 'where a key is expected'],
    ['{"a":1', 'the text ends where "," or "}" is expected'],
    ['[', 'the text ends where a value is expected'],
    ['{', 'the text ends where a key is expected'],
    [']', 'where a value is expected'],
    ['01', 'leading zero; leave the zero out'],
    ['-01', 'leading zero'],
    ['00', 'leading zero'],
    ['+1', 'where a value is expected'],
    ['.5', 'where a value is expected'],
    ['1.', 'a decimal point without digits'],
    ['1.e1', 'a decimal point without digits'],
    ['-', 'a minus without a number'],
    ['1e', 'an exponent without digits'],
    ['1e+', 'an exponent without digits'],
    ['1ee1', 'an exponent without digits'],
    ['0x10', 'after the end of the document'],
    ['1_000', 'after the end of the document'],
    ['"a', '$ (line 1, column 1): the string never ends; close it with a double quote'],
    ['"a\\', 'unknown escape'],
    ['"a\\"', 'the string never ends'],
    ['"a\nb"', 'bare control character in a string; write it as \\u000a'],
    ['"\u0000"', 'write it as \\u0000'],
    ['"\\n\u001f"', 'write it as \\u001f'],
    ['{"a\tb":1}', 'write it as \\u0009'],
    ['"\\x41"', 'unknown escape'],
    ['"\\\'"', 'unknown escape'],
    ['"\\u12"', 'four hexadecimal digits'],
    ['"\\u12g4"', 'four hexadecimal digits'],
    ['"\\U0041"', 'unknown escape'],
    ['"\\ud83d"', 'send both halves'],
    ['"\\ud83dx"', 'send both halves'],
    ['"\\ude00"', 'send both halves'],
    ['"\\ud83d\\ud83d\\ude00"', 'send both halves'],
    ['"\\ude00\\ud83d"', 'send both halves'],
    ['"\\ude00\\ude00"', 'send both halves'],
    ['"\\ud83d\\u0041"', 'send both halves'],
    ['{"\\udfff":1}', 'send both halves'],
    ['["a",\n"\ud83d"]', 'line 2, column 2: half a surrogate pair'],
    ['"\ude00"', 'send both halves'],
    ['"\ud83d\\ude00"', 'send both halves'],
    ['"\\ud83d\ude00"', 'send both halves'],
    ['{"a":1,"a":1}', '$.a (line 1, column 8): the key "a" occurs twice; send each key once'],
    ['{"a":null,"b":2,"a":null}', 'the key "a" occurs twice'],
    ['{"a":1,"\\u0061":2}', 'the key "a" occurs twice'],
    ['{"1":1,"1":2}', 'the key "1" occurs twice'],
    ['{"":1,"":2}', 'the key "" occurs twice'],
    ['{"__proto__":1}', '$.__proto__ (line 1, column 2): the key "__proto__" is refused; choose another name'],
    ['{"a":[{"__proto__":null}]}', '$.a[0].__proto__'],
    ['{"\\u005f_proto__":{}}', 'the key "__proto__" is refused'],
  ])('%j', (text, message) => {
    expect(refusal(text)).toContain(message);
    // Well-formed text gets the same message when it arrives as bytes.
    if (Buffer.from(text).toString() === text) expect(refusal(Buffer.from(text))).toBe(refusal(text));
  });

  it.each([
    '9007199254740993',
    '-9007199254740993',
    '9007199254740992.5',
    '9007199254740993.0',
    '90071992547409930e-1',
    '0.1000000000000000055',
    '0.10000000000000000000000000000001',
    '333333333.33333329',
    '100000000000000000001',
    '1e-400',
    '-1e-400',
    '4.9e-324',
    '1.7976931348623158e308',
    '1e-99999999999999999999',
  ])('the number %s, which a double would change', (literal) => {
    expect(refusal(`{"items":[0,{"amount":${literal}}]}`)).toBe(
      `$.items[1].amount (line 1, column 23): the number ${literal} would be read as ${Number(literal)}; ` +
        'send at most 15 significant digits, or a string',
    );
  });

  it.each(['1e400', '-1e400', '1e99999999999999999999', '1e309'])(
    'the number %s, which is past every double',
    (literal) => {
      expect(refusal(literal)).toBe(`$ (line 1, column 1): the number ${literal} is too large; send a string`);
    },
  );

  it.each<[string, number[], number]>([
    ['a stray continuation', [0x22, 0x80, 0x22], 1],
    ['an overlong form', [0x22, 0xc0, 0xaf, 0x22], 1],
    ['an encoded surrogate', [0x22, 0xed, 0xa0, 0x80, 0x22], 1],
    ['a code point past the last', [0x22, 0xf4, 0x90, 0x80, 0x80, 0x22], 1],
    ['a cut sequence', [0x22, 0x61, 0xe2, 0x82], 2],
    ['a fault after a real U+FFFD', [0x22, 0xef, 0xbf, 0xbd, 0xff, 0x22], 4],
    ['UTF-16', [0xff, 0xfe, 0x31, 0x00], 0],
  ])('bytes that are not UTF-8: %s', (_, bytes, at) => {
    expect(refusal(Buffer.from(bytes))).toBe(`near byte ${at}: not UTF-8; JSON is sent as UTF-8`);
  });

  it('a byte order mark in bytes', () => {
    expect(refusal(Buffer.from([0xef, 0xbb, 0xbf, 0x31]))).toContain('byte order mark');
  });

  it('more than 64 levels, or more than maxDepth', () => {
    for (const text of [nested(65), '{"a":'.repeat(65), million('[')]) {
      expect(refusal(text)).toContain('nested deeper than 64 levels; send a flatter value');
    }
    expect(refusal('[[[]]]', { maxDepth: 2 })).toBe(
      '$[0][0] (line 1, column 3): nested deeper than 2 levels; send a flatter value',
    );
    expect(refusal('{}', { maxDepth: 0 })).toContain('nested deeper than 0 levels');
  });

  it('a maxDepth that recursion cannot handle, as a programming error', () => {
    for (const maxDepth of [1001, Number.POSITIVE_INFINITY, -1, Number.NaN]) {
      expect(() => parseStrictJson('1', { maxDepth })).toThrow(RangeError);
    }
  });

  it('with path, line and column', () => {
    expect(refusal('{\n  "a b": [1,\n    {"c": x}]\n}')).toMatch(
      /^\$\["a b"\]\[1\]\.c \(line 3, column 11\): found "x"/,
    );
    // An earlier sibling is not part of the path.
    expect(refusal('{"a":{"b":1},"c":{x}}')).toMatch(/^\$\.c \(line 1, column 19\)/);
  });

  it('with a short message, however long the text is', () => {
    expect(refusal(`{"${million('k')}":x}`).length).toBeLessThan(300);
    expect(refusal(million('9')).length).toBeLessThan(300);
    expect(refusal(`{"${million('k')}":1,"${million('k')}":1}`).length).toBeLessThan(300);
  });
});

describe('long literals', () => {
  it('are parsed in linear time', () => {
    const zeros = million('0');
    expect(parseStrictJson(`1${zeros}e-1000000`)).toBe(1);
    expect(parseStrictJson(`0.${zeros}1e1000000`)).toBe(0.1);
    expect(parseStrictJson(`0.5${zeros}`)).toBe(0.5);
    expect(parseStrictJson(`0e${million('9')}`)).toBe(0);
    expect(refusal(`0.${zeros}1${zeros}`)).toContain('would be read as 0;');
    expect(refusal(`1.${zeros}1`)).toContain('would be read as 1;');
    expect(refusal(`1${zeros}`)).toContain('too large');
    expect(refusal(`1e-${million('9')}`)).toContain('would be read as 0;');
    expect(parseStrictJson(`"${'\\n'.repeat(1_000_000)}"`)).toBe(million('\n'));
    expect(parseStrictJson(`[${'1,'.repeat(300_000)}1]`)).toHaveLength(300_001);
  });
});

describe('properties', () => {
  it('parses everything that JSON.stringify writes', () => {
    fc.assert(
      fc.property(json, fc.constantFrom('', ' ', '\n\t'), (value, indent) => {
        const text = JSON.stringify(value, null, indent);
        // JSON.stringify writes -0 as 0.
        const expected = JSON.parse(text);
        expect(parseStrictJson(text)).toStrictEqual(expected);
        expect(parseStrictJson(Buffer.from(text))).toStrictEqual(expected);
      }),
      { numRuns: 2000 },
    );
  });

  it('accepts every double as JavaScript prints it', () => {
    fc.assert(
      fc.property(fc.double({ noDefaultInfinity: true, noNaN: true }), (value) => {
        expect(parseStrictJson(String(value))).toBe(value === 0 ? 0 : value);
      }),
      { numRuns: 5000 },
    );
  });

  it('accepts a decimal exactly when JavaScript prints the same decimal', () => {
    const literal = fc
      .tuple(
        fc.constantFrom('', '-'),
        fc.stringMatching(/^(0|[1-9][0-9]{0,19})$/),
        fc.stringMatching(/^(\.[0-9]{1,20})?$/),
        fc.stringMatching(/^([eE][+-]?[0-9]{1,2})?$/),
      )
      .map((parts) => parts.join(''));
    const verdicts = { accepted: 0, refused: 0 };
    fc.assert(
      fc.property(literal, (text) => {
        if (scaled(text) === scaled(String(Number(text)))) {
          verdicts.accepted++;
          expect(parseStrictJson(text)).toBe(Number(text) === 0 ? 0 : Number(text));
        } else {
          verdicts.refused++;
          expect(refusal(text)).toContain('would be read as');
        }
      }),
      { numRuns: 5000 },
    );
    expect(Math.min(verdicts.accepted, verdicts.refused)).toBeGreaterThan(100);
  });

  it('survives 20,000 damaged documents: agrees with JSON.parse or throws StrictJsonError', () => {
    // Reasons for which the parser refuses a text that JSON.parse accepts. For any other reason, JSON.parse must refuse it too.
    const stricter =
      /occurs twice|__proto__|would be read as|too large|surrogate|nested deeper|not UTF-8|byte order mark/;
    const outcomes = { accepted: 0, refused: 0 };
    const byte = fc.oneof(fc.nat(255), fc.constantFrom(...Buffer.from('{}[]",:\\u0d8e-+.19 \n')));
    const damage = fc.record({ at: fc.nat(), how: fc.constantFrom('set', 'insert', 'delete', 'repeat'), byte });
    const document = fc.oneof(
      json.map((value) => JSON.stringify(value)),
      fc.constantFrom(
        '{"a":1.5e3,"b":"\\ud83d\\ude00","c":[true,null,-0]}',
        '{"id":9007199254740991,"idx":0.1,"ids":"\\n"}',
      ),
    );
    fc.assert(
      fc.property(document, fc.array(damage, { minLength: 1, maxLength: 3 }), (text, damages) => {
        const bytes = [...Buffer.from(text)];
        for (const { at, how, byte } of damages) {
          const place = at % (bytes.length + 1);
          if (how === 'set') bytes[Math.min(place, Math.max(0, bytes.length - 1))] = byte;
          else if (how === 'insert') bytes.splice(place, 0, byte);
          else if (how === 'delete') bytes.splice(place, 1);
          else bytes.splice(place, 0, ...bytes.slice(place, place + 8));
        }
        const damaged = Buffer.from(bytes);
        let value: unknown;
        try {
          value = parseStrictJson(damaged);
        } catch (error) {
          if (!(error instanceof StrictJsonError)) throw error;
          outcomes.refused++;
          if (!stricter.test(error.message)) expect(() => JSON.parse(damaged.toString())).toThrow(SyntaxError);
          return;
        }
        outcomes.accepted++;
        // Compare as text, so that the order of keys counts and -0 equals 0.
        if (JSON.stringify(value) !== JSON.stringify(JSON.parse(damaged.toString()))) {
          throw new Error(`not what JSON.parse reads: ${JSON.stringify(value)}`);
        }
      }),
      { numRuns: 20_000 },
    );
    expect(Math.min(outcomes.accepted, outcomes.refused)).toBeGreaterThan(1000);
  });
});

/** The decimal as an integer multiple of 10^-200, computed independently of the parser. */
function scaled(literal: string): bigint {
  const [mantissa = '', exponent = '0'] = literal.toLowerCase().split('e');
  const [whole = '', fraction = ''] = mantissa.split('.');
  return BigInt(whole + fraction) * 10n ** BigInt(200 + Number(exponent) - fraction.length);
}
