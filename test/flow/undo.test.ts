// biome-ignore-all lint/suspicious/noTemplateCurlyInString: undos are templates
import { describe, expect, it } from 'vitest';
import { NotCanonical } from '../../gateway/domain/canonical.ts';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import type { Tool } from '../../gateway/domain/policy.ts';
import { beforeOf, keepBefore, ownArgsShown, renderUndo, undoArgsOf, undoSecretsOf } from '../../gateway/flow/undo.ts';
import { cpuMs } from '../policy/example.ts';

const KEY = Buffer.alloc(32, 7);
const redacting = (...paths: string[][]) => ({ redact: paths }) as unknown as Tool;
const tool = redacting(['args', 'secret']);

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

/** Half a character: nobody can send it, and anybody may answer with it. */
const HALF = 'half \ud83d';

function undoFrom(by: Tool, template: Json, given: { args?: JsonObject; result?: Json }) {
  const { args = {}, result = null } = given;
  const scope = { txn: 't-1', agent: 'a', args, result, before: undefined, isBeforeSecret: false };
  const undo = { kind: 'compensable', tool: 'u', template } as const;
  const kept = renderUndo(KEY, by, undefined, undo, scope);
  return { kept, call: { txn: 't-1', before: null, undoArgs: kept?.args ?? null, undoSealed: kept?.sealed ?? null } };
}

describe('half a character', () => {
  it('in what a result has beside what its undo needs does not cost the undo', () => {
    const { kept, call } = undoFrom(
      redacting(['result', 'token']),
      { id: '${result.id}' },
      { result: { id: 'r1', token: HALF } },
    );
    expect(kept).toMatchObject({ args: '{"id":"r1"}', reason: null });
    expect(undoArgsOf(KEY, call)).toEqual({ id: 'r1' });
    expect(undoSecretsOf(KEY, call)).toEqual([HALF]);
  });

  it('in the arguments of the undo itself does: nobody could send them', () => {
    const { kept } = undoFrom(redacting(['result', 'token']), { id: '${result.token}' }, { result: { token: HALF } });
    expect(kept).toMatchObject({ args: null, sealed: null, reason: expect.stringContaining('a lone surrogate') });
  });

  it('in what was observed is kept where that is sealed', () => {
    const before = { name: HALF };
    const { sealed: undoSealed } = keepBefore(KEY, 't-1', before, true);
    expect(beforeOf(KEY, { txn: 't-1', before: null, undoArgs: null, undoSealed })).toEqual(before);
  });

  it('a number without end is not: it would be nothing', () => {
    expect(() => keepBefore(KEY, 't-1', JSON.parse('{"n":1e400}') as Json, true)).toThrow(NotCanonical);
  });
});
