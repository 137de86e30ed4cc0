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

/** A code unit in one of its JSON encodings; `choice` selects the encoding. */
function encodeUnit(unit: string, choice: number): string {
  const hex = unit.charCodeAt(0).toString(16).padStart(4, '0');
  const mustEscape = unit === '"' || unit === '\\' || unit < ' ';
  const candidates = [`\\u${hex}`, `\\u${hex.toUpperCase()}`, SHORT[unit], mustEscape ? undefined : unit];
  const encodings = candidates.filter((each) => each !== undefined);
  return encodings[choice % encodings.length] as string;
}

const unitsOf = (text: string): string[] => Array.from({ length: text.length }, (_, i) => text.charAt(i));

/** A character that no secret and no encoding contains, so no match crosses it. */
const FENCE = '\u0001';
const withoutFence = (unit: 'binary' | 'grapheme', min: number, max: number) =>
  fc.string({ unit, minLength: min, maxLength: max }).filter((text) => !text.includes(FENCE));
const escapeLike = fc.string({
  unit: fc.constantFrom('a', 'b', '\\', 'u', '0', '6', '1', '/', 'n', '\n'),
  maxLength: 24,
});

describe('scrub', () => {
  it('replaces a secret in every JSON encoding', () => {
    const choices = fc.array(fc.nat(11), { minLength: 120, maxLength: 120 });
    fc.assert(
      fc.property(withoutFence('binary', 1, 30), choices, escapeLike, escapeLike, (secret, choice, before, after) => {
        const encoded = unitsOf(secret).map((unit, i) => encodeUnit(unit, choice[i] ?? 0));
        for (const text of [secret, encoded.join('')]) {
          const fenced = `${FENCE}${text}${FENCE}`;
          expect(scrub(`${before}${fenced}${after}`, [secret])).toContain(`${FENCE}${REDACTED}${FENCE}`);
        }
      }),
    );
  });

  /** A second implementation: reads the text from every index, literally and as JSON. */
  const containsSecret = (text: string, secret: string): boolean => {
    const decode = (token: string): string => {
      if (token.length === 6) return String.fromCharCode(Number.parseInt(token.slice(2), 16));
      return token.length === 1 ? token : ((JSON.parse(`"${token}"`) as string) ?? '');
    };
    const readFrom = (at: number): string =>
      (text.slice(at).match(/\\u[\da-f]{4}|\\["\\/bfnrt]|[\s\S]/gi) ?? []).map(decode).join('');
    return text.includes(secret) || unitsOf(text).some((_, at) => readFrom(at).startsWith(secret));
  };

  it('changes a text exactly when it contains the secret', () => {
    const secrets = fc.string({ unit: fc.constantFrom('a', 'b', '\\', 'n', '/', '\n'), minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(escapeLike, secrets, (text, secret) => {
        expect(scrub(text, [secret]) !== text).toBe(containsSecret(text, secret));
      }),
      { numRuns: 3_000 },
    );
  });

  it('replaces every character of every secret, also of overlapping ones', () => {
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
    ['literally', long],
    ['as JSON.stringify writes it', JSON.stringify(long).slice(1, -1)],
    ['in mixed JSON encodings', unitsOf(long).map(encodeUnit).join('')],
  ])('replaces a secret of 100,000 characters, %s', (_, encoded) => {
    expect(long).toHaveLength(100_000);
    expect(scrub(`{"a":"${encoded}","b":"\\n"}`, [long])).toBe('{"a":"[redacted]","b":"\\n"}');
    expect(scrub(`{"a":"${encoded.slice(0, -1)}"}`, [long])).not.toContain(REDACTED);
  });

  it('replaces a secret that repeats one character 100,000 times', () => {
    const secret = 'x'.repeat(100_000);
    expect(scrub(`<${secret}>\\n`, [secret, 'other'])).toBe('<[redacted]>\\n');
    expect(scrub(secret.slice(1), [secret])).toBe(secret.slice(1));
  });

  it('redacts a whole text that nearly matches the secret in too many places', () => {
    const startedAt = performance.now();
    expect(scrub(`${'a'.repeat(500_000)}\\n`, [`${'a'.repeat(250_000)}b`])).toBe(REDACTED);
    expect(performance.now() - startedAt).toBeLessThan(2_000);
  });

  it('finds many secrets in one pass', () => {
    const secrets = Array.from({ length: 20_000 }, (_, i) => `leaf-${i * 7_919}`);
    const text = JSON.stringify({ t: `the quick brown leaf\n ${secrets[77]}! `.repeat(3_500) });
    const startedAt = performance.now();
    expect(scrub(text, secrets)).toBe(text.replaceAll(secrets[77] as string, REDACTED));
    expect(performance.now() - startedAt).toBeLessThan(1_000);
  });
});

test('a credential of 10,000 characters is replaced in an answer', () => {
  const credential = `-----BEGIN/${'Abc/9+'.repeat(1_700)}`;
  const scrubCredential = buildCredentialScrubber([credential]);
  expect(scrubCredential(JSON.stringify({ a: credential }))).toBe('{"a":"[redacted]"}');
  expect(scrubCredential(`{"a":"${credential.replaceAll('/', '\\/')}"}`)).toBe('{"a":"[redacted]"}');
  expect(scrubCredential('{"a":"b\\n"}')).toBe('{"a":"b\\n"}');
});
