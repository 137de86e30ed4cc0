import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { canonicalize } from '../../gateway/domain/canonical.ts';
import type { Json } from '../../gateway/domain/json.ts';
import { parseStrictJson } from '../../gateway/domain/strict-json.ts';

const json = fc
  .jsonValue({ stringUnit: 'binary', maxDepth: 5 })
  .filter((value) => !JSON.stringify(value).includes('__proto__')) as fc.Arbitrary<Json>;

describe('RFC 8785', () => {
  it('section 3.2.2: the sample', () => {
    const sample = JSON.parse(String.raw`{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }`);
    expect(canonicalize(sample)).toBe(
      String.raw`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
    );
  });

  it('section 3.2.3: keys by UTF-16 code units, not by code points', () => {
    const sample = {
      '\u20ac': 'Euro Sign',
      '\r': 'Carriage Return',
      '\ufb33': 'Hebrew Letter Dalet With Dagesh',
      '1': 'One',
      '\ud83d\ude00': 'Emoji: Grinning Face',
      '\u0080': 'Control',
      '\u00f6': 'Latin Small Letter O With Diaeresis',
    };
    expect(canonicalize(sample)).toBe(
      '{"\\r":"Carriage Return","1":"One","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis",' +
        '"\u20ac":"Euro Sign","\ud83d\ude00":"Emoji: Grinning Face","\ufb33":"Hebrew Letter Dalet With Dagesh"}',
    );
  });

  it.each([
    ['0000000000000000', '0'],
    ['8000000000000000', '0'],
    ['0000000000000001', '5e-324'],
    ['8000000000000001', '-5e-324'],
    ['7fefffffffffffff', '1.7976931348623157e+308'],
    ['ffefffffffffffff', '-1.7976931348623157e+308'],
    ['4340000000000000', '9007199254740992'],
    ['c340000000000000', '-9007199254740992'],
    ['4430000000000000', '295147905179352830000'],
    ['44b52d02c7e14af5', '9.999999999999997e+22'],
    ['44b52d02c7e14af6', '1e+23'],
    ['44b52d02c7e14af7', '1.0000000000000001e+23'],
    ['444b1ae4d6e2ef4e', '999999999999999700000'],
    ['444b1ae4d6e2ef4f', '999999999999999900000'],
    ['444b1ae4d6e2ef50', '1e+21'],
    ['3eb0c6f7a0b5ed8c', '9.999999999999997e-7'],
    ['3eb0c6f7a0b5ed8d', '0.000001'],
    ['41b3de4355555553', '333333333.3333332'],
    ['41b3de4355555554', '333333333.33333325'],
    ['41b3de4355555555', '333333333.3333333'],
    ['41b3de4355555556', '333333333.3333334'],
    ['41b3de4355555557', '333333333.33333343'],
    ['becbf647612f3696', '-0.0000033333333333333333'],
    ['43143ff3c1cb0959', '1424953923781206.2'],
  ])('appendix B: %s is %s', (bits, text) => {
    expect(canonicalize(Buffer.from(bits, 'hex').readDoubleBE())).toBe(text);
  });
});

describe('canonical', () => {
  it.each<[Json, string]>([
    [null, 'null'],
    [true, 'true'],
    [false, 'false'],
    ['', '""'],
    [[], '[]'],
    [{}, '{}'],
    [[[], {}, [1]], '[[],{},[1]]'],
    [{ b: { d: 1, c: 2 }, a: [] }, '{"a":[],"b":{"c":2,"d":1}}'],
    [{ 10: 1, 9: 2, a: 3 }, '{"10":1,"9":2,"a":3}'],
    [{ ab: 1, a: 2, '': 3, B: 4 }, '{"":3,"B":4,"a":2,"ab":1}'],
    ['\b\f\n\r\t"\\/\u0001\u001f', '"\\b\\f\\n\\r\\t\\"\\\\/\\u0001\\u001f"'],
    ['\u007f\u0080\u2028\u2029é😀', '"\u007f\u0080\u2028\u2029é😀"'],
    [{ '"': 1, '\n': 2 }, '{"\\n":2,"\\"":1}'],
  ])('%j', (value, text) => {
    expect(canonicalize(value)).toBe(text);
  });

  it.each<[string, unknown]>([
    ['NaN', Number.NaN],
    ['Infinity', Number.POSITIVE_INFINITY],
    ['-Infinity', Number.NEGATIVE_INFINITY],
    ['undefined', undefined],
    ['a bigint', 1n],
    ['a function', () => 1],
    ['a symbol', Symbol('s')],
    ['a lone high surrogate', '\ud83d'],
    ['a lone low surrogate', 'a\ude00'],
  ])('refuses %s wherever it is', (_, value) => {
    for (const place of [value, [value], [1, value], { a: value }, { a: 1, b: [{ c: value }] }]) {
      expect(() => canonicalize(place as Json)).toThrow(TypeError);
    }
  });

  it('refuses a lone surrogate in a key and a hole in an array', () => {
    expect(() => canonicalize({ '\ud83d': 1 })).toThrow(TypeError);
    expect(() => canonicalize(new Array(2) as Json[])).toThrow(TypeError);
  });

  it('does not change the value', () => {
    const value = { b: 1, a: [2, 1] };
    canonicalize(value);
    expect(Object.keys(value)).toEqual(['b', 'a']);
    expect(value.a).toEqual([2, 1]);
  });

  it('sorts few and many keys in the same order', () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.string({ unit: 'binary' }), { maxLength: 60, size: 'max' }), (keys) => {
        const names = keys.filter((key) => key !== '__proto__');
        const value = Object.fromEntries(names.map((key) => [key, 0]));
        const sorted = names.toSorted((a, b) => (a < b ? -1 : 1));
        expect(canonicalize(value)).toBe(`{${sorted.map((key) => `${JSON.stringify(key)}:0`).join(',')}}`);
      }),
    );
  });

  it('does not depend on the order of keys', () => {
    fc.assert(
      fc.property(json, fc.infiniteStream(fc.nat()), (value, randoms) => {
        expect(canonicalize(shuffled(value, () => randoms.next().value))).toBe(canonicalize(value));
      }),
      { numRuns: 2000 },
    );
  });

  it('round-trips, and is its own canonical form', () => {
    fc.assert(
      fc.property(json, (value) => {
        const text = canonicalize(value);
        expect(parseStrictJson(text)).toStrictEqual(JSON.parse(JSON.stringify(value)));
        expect(canonicalize(parseStrictJson(text))).toBe(text);
      }),
      { numRuns: 2000 },
    );
  });
});

/** The same value, with the keys of every object in another order. */
function shuffled(value: Json, random: () => number): Json {
  if (Array.isArray(value)) return value.map((item) => shuffled(item, random));
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).map(([key, item]) => ({ key, item: shuffled(item, random), rank: random() }));
  return Object.fromEntries(entries.toSorted((a, b) => a.rank - b.rank).map(({ key, item }) => [key, item]));
}
