import { describe, expect, it } from 'vitest';
import type { UpstreamAnswer } from '../../gateway/domain/attempts/adapter.ts';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import type { Tool } from '../../gateway/domain/policy.ts';
import { redactAnswer } from '../../gateway/flow/calls/payload.ts';
import { measureCpuMs } from '../policy/example.ts';

const tool = { redact: [['args', 'secret']] } as unknown as Tool;

function told(body: string, secret: Json, more: Partial<UpstreamAnswer> = {}): UpstreamAnswer {
  const answer: UpstreamAnswer = { status: 200, contentType: 'application/json', body, encoding: 'utf8', ...more };
  return redactAnswer(tool, answer, { secret } as JsonObject);
}

describe('what an answer echoes of redacted arguments', () => {
  it.each<[string, Json, string, string | null]>([
    ['a text', 'abcdef', '{"a":"it is abcdef\\n"}', '{"a":"it is [redacted]\\n"}'],
    ['a document of 7,000 characters', 'x/'.repeat(3_500), `{"a":"${'x\\/'.repeat(3_500)}"}`, '{"a":"[redacted]"}'],
    [
      'a short text, where it is a whole string',
      'ab',
      '{"ab":"ab","a":"cab","b":["ab"]}',
      '{"[redacted]":"[redacted]","a":"cab","b":["[redacted]"]}',
    ],
    [
      'a short text with escapes',
      'a"\n',
      '["a\\"\\n","\\u0061\\u0022\\u000A","a\\n"]',
      '["[redacted]","[redacted]","a\\n"]',
    ],
    [
      'a short text after a long one',
      'ab',
      '{"a name of many letters":"ab"}',
      '{"a name of many letters":"[redacted]"}',
    ],
    [
      'a number',
      123456,
      '[123456,1234567,"no. 123456",-123456,0.123456]',
      '[null,1234567,"no. null",-123456,0.123456]',
    ],
    ['a number in other words', 1234.5, '[1234.50,12345e-1,1.2345E3,12345]', '[null,null,null,12345]'],
    ['a large number', 1e21, '[1e21,1E+21,1000000000000000000000]', '[null,null,null]'],
    ['a number that is short', 12, '[12,"12"]', '[12,"12"]'],
  ])('%s', (_, secret, body, clean) => {
    expect(told(body, secret).body).toBe(clean);
  });

  it('is not kept at all where it cannot be looked through', () => {
    expect(told(`"${'a'.repeat(400_000)}\\n"`, `${'a'.repeat(200_000)}b`)).toMatchObject({ status: 200, body: null });
    const bytes = Buffer.from(`\xff${'a'.repeat(400_000)}\\n`, 'latin1').toString('base64');
    expect(told(bytes, `${'a'.repeat(200_000)}b`, { encoding: 'base64' }).body).toBeNull();
  });

  it.each<[string, Json]>([
    ['texts', Array.from({ length: 20_000 }, (_, i) => `leaf-${i * 7_919}`)],
    ['texts that each begin with the one before', Array.from({ length: 1_400 }, (_, i) => 'the'.repeat(1 + i))],
    ['numbers', Array.from({ length: 20_000 }, (_, i) => 100_000 + i * 7_919)],
    ['short texts', Array.from({ length: 20_000 }, (_, i) => (1_300 + i).toString(36))],
  ])('costs one look at it, however many %s there are', (_, secret) => {
    const body = JSON.stringify({ t: 'the quick brown fox\n jumps over the leaf '.repeat(3_000) });
    expect(measureCpuMs(() => void told(body, secret))).toBeLessThan(600);
  });
});
