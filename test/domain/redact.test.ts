import fc from 'fast-check';
import { describe, expect, it, test } from 'vitest';
import { buildCredentialScrubber, REDACTED, scrub } from '../../gateway/domain/calls/redact.ts';

const SHORT: Readonly<Record<string, string>> = {
  '"': '\\"',
  '\\': '\\\\',
  '/': '\\/',
  '\b': '\\b',
  '\f': '\\f',
  '\n': '\\n',
  '\r': '\\r',
  '\t': '\\t',
};

/** A unit as JSON may write it; `way` chooses among the ways there are. */
function written(unit: string, way: number): string {
  const hex = unit.charCodeAt(0).toString(16).padStart(4, '0');
  const mustEscape = unit === '"' || unit === '\\' || unit < ' ';
  const ways = [`\\u${hex}`, `\\u${hex.toUpperCase()}`, SHORT[unit], mustEscape ? undefined : unit];
  const there = ways.filter((each) => each !== undefined);
  return there[way % there.length] as string;
}

const unitsOf = (text: string): string[] => Array.from({ length: text.length }, (_, i) => text.charAt(i));

/** No secret has it and no writing, so nothing that is found reaches beyond. */
const FENCE = '\u0001';
const withoutFence = (unit: 'binary' | 'grapheme', min: number, max: number) =>
  fc.string({ unit, minLength: min, maxLength: max }).filter((text) => !text.includes(FENCE));
const slippery = fc.string({
  unit: fc.constantFrom('a', 'b', '\\', 'u', '0', '6', '1', '/', 'n', '\n'),
  maxLength: 24,
});

describe('scrub', () => {
  it('takes out a secret in whatever way JSON may write it', () => {
    const ways = fc.array(fc.nat(11), { minLength: 120, maxLength: 120 });
    fc.assert(
      fc.property(withoutFence('binary', 1, 30), ways, slippery, slippery, (secret, way, before, after) => {
        const writing = unitsOf(secret).map((unit, i) => written(unit, way[i] ?? 0));
        for (const text of [secret, writing.join('')]) {
          const fenced = `${FENCE}${text}${FENCE}`;
          expect(scrub(`${before}${fenced}${after}`, [secret])).toContain(`${FENCE}${REDACTED}${FENCE}`);
        }
      }),
    );
  });

  /** Told in another way: what stands at each place, read as it is and as JSON. */
  const holds = (text: string, secret: string): boolean => {
    const meant = (token: string): string => {
      if (token.length === 6) return String.fromCharCode(Number.parseInt(token.slice(2), 16));
      return token.length === 1 ? token : ((JSON.parse(`"${token}"`) as string) ?? '');
    };
    const readFrom = (at: number): string =>
      (text.slice(at).match(/\\u[\da-f]{4}|\\["\\/bfnrt]|[\s\S]/gi) ?? []).map(meant).join('');
    return text.includes(secret) || unitsOf(text).some((_, at) => readFrom(at).startsWith(secret));
  };

  it('leaves a text without the secret as it is, and none with it', () => {
    const secrets = fc.string({ unit: fc.constantFrom('a', 'b', '\\', 'n', '/', '\n'), minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(slippery, secrets, (text, secret) => {
        expect(scrub(text, [secret]) !== text).toBe(holds(text, secret));
      }),
      { numRuns: 3_000 },
    );
  });

  it('takes out every character of every secret, also where they overlap', () => {
    const word = fc.string({ unit: fc.constantFrom('x', 'y', 'z'), minLength: 1, maxLength: 5 });
    const words = fc.array(word, { minLength: 1, maxLength: 6 });
    const texts = fc.string({ unit: fc.constantFrom('x', 'y', 'z', '-'), maxLength: 40 });
    fc.assert(
      fc.property(texts, words, (text, secrets) => {
        const isSecret = unitsOf(text).map(() => false);
        for (const secret of secrets)
          for (let at = text.indexOf(secret); at >= 0; at = text.indexOf(secret, at + 1))
            isSecret.fill(true, at, at + secret.length);
        const left = unitsOf(text).filter((_, i) => isSecret[i] === false);
        expect(scrub(text, secrets).replaceAll(REDACTED, '')).toBe(left.join(''));
      }),
    );
  });

  const long = Array.from({ length: 14_000 }, (_, i) => `${(i * 7_919) % 10_000}/"é\n`)
    .join('')
    .slice(0, 100_000);

  it.each([
    ['as it is', long],
    ['as JSON writes it', JSON.stringify(long).slice(1, -1)],
    ['as other JSON writes it', unitsOf(long).map(written).join('')],
  ])('takes out a secret of 100,000 characters, %s', (_, writing) => {
    expect(long).toHaveLength(100_000);
    expect(scrub(`{"a":"${writing}","b":"\\n"}`, [long])).toBe('{"a":"[redacted]","b":"\\n"}');
    expect(scrub(`{"a":"${writing.slice(0, -1)}"}`, [long])).not.toContain(REDACTED);
  });

  it('takes out one character a hundred thousand times', () => {
    const secret = 'x'.repeat(100_000);
    expect(scrub(`<${secret}>\\n`, [secret, 'other'])).toBe('<[redacted]>\\n');
    expect(scrub(secret.slice(1), [secret])).toBe(secret.slice(1));
  });

  it('tells nothing of a text that is nearly the secret in too many places', () => {
    const began = performance.now();
    expect(scrub(`${'a'.repeat(500_000)}\\n`, [`${'a'.repeat(250_000)}b`])).toBe(REDACTED);
    expect(performance.now() - began).toBeLessThan(2_000);
  });

  it('finds many secrets in one pass', () => {
    const secrets = Array.from({ length: 20_000 }, (_, i) => `leaf-${i * 7_919}`);
    const text = JSON.stringify({ t: `the quick brown leaf\n ${secrets[77]}! `.repeat(3_500) });
    const began = performance.now();
    expect(scrub(text, secrets)).toBe(text.replaceAll(secrets[77] as string, REDACTED));
    expect(performance.now() - began).toBeLessThan(1_000);
  });
});

test('a credential of 10,000 characters is taken out of an answer', () => {
  const credential = `-----BEGIN/${'Abc/9+'.repeat(1_700)}`;
  const clean = buildCredentialScrubber([credential]);
  expect(clean(JSON.stringify({ a: credential }))).toBe('{"a":"[redacted]"}');
  expect(clean(`{"a":"${credential.replaceAll('/', '\\/')}"}`)).toBe('{"a":"[redacted]"}');
  expect(clean('{"a":"b\\n"}')).toBe('{"a":"b\\n"}');
});
