import { describe, expect, it } from 'vitest';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import type { Tool } from '../../gateway/domain/policy.ts';
import { ownArgsShown } from '../../gateway/flow/undo.ts';
import { cpuMs } from '../policy/example.ts';

const tool = { redact: [['args', 'secret']] } as unknown as Tool;

describe('an undo that the caller names', () => {
  const shown = (args: JsonObject, secret: Json) => ownArgsShown({ tool: 'u', args }, undefined, tool, { secret });

  it('shows no value that has a secret in it', () => {
    const args = {
      a: 'abcdef',
      b: ['of abcdef', 'abc'],
      c: 42,
      d: 1234567,
      e: 'id-1234567',
      f: 12345678,
      g: '',
      h: null,
    };
    expect(shown(args, ['abcdef', 42, 1234567])).toEqual({
      a: '[redacted]',
      b: ['[redacted]', 'abc'],
      c: '[redacted]',
      d: '[redacted]',
      e: '[redacted]',
      f: 12345678,
      g: '',
      h: null,
    });
  });

  it('costs one look at its values, however many secrets there are', () => {
    const secrets = Array.from({ length: 20_000 }, (_, i) => `leaf-${i * 7_919}`);
    const args = { a: Array.from({ length: 3_000 }, (_, i) => `some value of an undo ${i}`) };
    expect(cpuMs(() => void shown(args, secrets))).toBeLessThan(600);
  });
});
