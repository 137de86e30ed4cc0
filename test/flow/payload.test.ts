import { describe, expect, it } from 'vitest';
import type { UpstreamAnswer } from '../../gateway/domain/attempts/adapter.ts';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import type { Tool } from '../../gateway/domain/policy.ts';
import { redactAnswer } from '../../gateway/flow/calls/payload.ts';
import { measureCpuMs } from '../policy/example.ts';

const tool = { redact: [['args', 'secret']] } as unknown as Tool;

function redacted(body: string, secret: Json, more: Partial<UpstreamAnswer> = {}): UpstreamAnswer {
  const answer: UpstreamAnswer = { status: 200, contentType: 'application/json', body, encoding: 'utf8', ...more };
  return redactAnswer(tool, answer, { secret } as JsonObject);
}

describe('an answer that echoes redacted arguments', () => {
  it.each<[string, Json, string, string | null]>([
    ['hides a text', 'abcdef', '{"a":"it is abcdef\\n"}', '{"a":"it is [redacted]\\n"}'],
    [
      'hides a document of 7,000 characters',
      'x/'.repeat(3_500),
      `{"a":"${'x\\/'.repeat(3_500)}"}`,
      '{"a":"[redacted]"}',
    ],
    [
      'hides a short text where it is a whole string',
      'ab',
      '{"ab":"ab","a":"cab","b":["ab"]}',
      '{"[redacted]":"[redacted]","a":"cab","b":["[redacted]"]}',
    ],
    [
      'hides a short text with escapes',
      'a"\n',
      '["a\\"\\n","\\u0061\\u0022\\u000A","a\\n"]',
      '["[redacted]","[redacted]","a\\n"]',
    ],
    [
      'hides a short text after a long one',
      'ab',
      '{"a name of many letters":"ab"}',
      '{"a name of many letters":"[redacted]"}',
    ],
    [
      'hides a number',
      123456,
      '[123456,1234567,"no. 123456",-123456,0.123456]',
      '[null,1234567,"no. null",-123456,0.123456]',
    ],
    ['hides a number in other spellings', 1234.5, '[1234.50,12345e-1,1.2345E3,12345]', '[null,null,null,12345]'],
    ['hides a large number', 1e21, '[1e21,1E+21,1000000000000000000000]', '[null,null,null]'],
    ['keeps a short number', 12, '[12,"12"]', '[12,"12"]'],
  ])('%s', (_, secret, body, clean) => {
    expect(redacted(body, secret).body).toBe(clean);
  });

  it('is dropped if it cannot be searched in time', () => {
    expect(redacted(`"${'a'.repeat(400_000)}\\n"`, `${'a'.repeat(200_000)}b`)).toMatchObject({
      status: 200,
      body: null,
    });
    const bytes = Buffer.from(`\xff${'a'.repeat(400_000)}\\n`, 'latin1').toString('base64');
    expect(redacted(bytes, `${'a'.repeat(200_000)}b`, { encoding: 'base64' }).body).toBeNull();
  });

  it.each<[string, Json]>([
    ['texts', Array.from({ length: 20_000 }, (_, i) => `leaf-${i * 7_919}`)],
    ['texts that each start with the previous one', Array.from({ length: 1_400 }, (_, i) => 'the'.repeat(1 + i))],
    ['numbers', Array.from({ length: 20_000 }, (_, i) => 100_000 + i * 7_919)],
    ['short texts', Array.from({ length: 20_000 }, (_, i) => (1_300 + i).toString(36))],
  ])('is searched in one pass, however many %s there are', (_, secret) => {
    const body = JSON.stringify({ t: 'the quick brown fox\n jumps over the leaf '.repeat(3_000) });
    expect(measureCpuMs(() => void redacted(body, secret))).toBeLessThan(600);
  });
});
