// biome-ignore-all lint/suspicious/noTemplateCurlyInString: undos are templates
import { describe, expect, it } from 'vitest';
import { NotCanonicalError } from '../../gateway/domain/canonical.ts';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import type { Tool } from '../../gateway/domain/policy.ts';
import {
  buildUndoArguments,
  collectUndoSecrets,
  decodeObservation,
  decodeUndoArgs,
  encodeObservation,
  redactCallerUndoArgs,
} from '../../gateway/flow/sagas/undo.ts';
import { measureCpuMs } from '../policy/example.ts';

const KEY = Buffer.alloc(32, 7);
const redacting = (...paths: string[][]) => ({ redact: paths }) as unknown as Tool;
const tool = redacting(['args', 'secret']);

describe('an undo of the caller', () => {
  const shown = (args: JsonObject, secret: Json) =>
    redactCallerUndoArgs({ tool: 'u', args }, undefined, tool, { secret });

  it('hides every value that contains a secret', () => {
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

  it('is searched in one pass, however many secrets there are', () => {
    const secrets = Array.from({ length: 20_000 }, (_, i) => `leaf-${i * 7_919}`);
    const args = { a: Array.from({ length: 3_000 }, (_, i) => `some value of an undo ${i}`) };
    expect(measureCpuMs(() => void shown(args, secrets))).toBeLessThan(600);
  });
});

/** A lone surrogate: an upstream may answer with it, but it cannot be sent as JSON. */
const LONE_SURROGATE = 'half \ud83d';

function undoFrom(by: Tool, template: Json, given: { args?: JsonObject; result?: Json }) {
  const { args = {}, result = null } = given;
  const scope = { txn: 't-1', agent: 'a', args, result, before: undefined, isBeforeSecret: false };
  const undo = { kind: 'compensable', tool: 'u', template } as const;
  const kept = buildUndoArguments(KEY, by, undefined, undo, scope);
  return { kept, call: { txn: 't-1', before: null, undoArgs: kept?.args ?? null, undoSealed: kept?.sealed ?? null } };
}

describe('a lone surrogate', () => {
  it('in a part of the result that the undo does not use does not prevent the undo', () => {
    const { kept, call } = undoFrom(
      redacting(['result', 'token']),
      { id: '${result.id}' },
      { result: { id: 'r1', token: LONE_SURROGATE } },
    );
    expect(kept).toMatchObject({ args: '{"id":"r1"}', reason: null });
    expect(decodeUndoArgs(KEY, call)).toEqual({ id: 'r1' });
    expect(collectUndoSecrets(KEY, call)).toEqual([LONE_SURROGATE]);
  });

  it('in the arguments of the undo prevents it, because they cannot be sent', () => {
    const { kept } = undoFrom(
      redacting(['result', 'token']),
      { id: '${result.token}' },
      { result: { token: LONE_SURROGATE } },
    );
    expect(kept).toMatchObject({ args: null, sealed: null, reason: expect.stringContaining('a lone surrogate') });
  });

  it('in an encrypted observation is kept', () => {
    const before = { name: LONE_SURROGATE };
    const { sealed: undoSealed } = encodeObservation(KEY, 't-1', before, true);
    expect(decodeObservation(KEY, { txn: 't-1', before: null, undoArgs: null, undoSealed })).toEqual(before);
  });

  it('is kept, but an infinite number is refused, because JSON would turn it into null', () => {
    expect(() => encodeObservation(KEY, 't-1', JSON.parse('{"n":1e400}') as Json, true)).toThrow(NotCanonicalError);
  });
});

describe('a redacted object', () => {
  const tokens = { sk_live_x: true, pk_live_y: [{ z_live: 1 }] };
  const shownOf = (template: Json, args: JsonObject = { tokens, order: 'o-1' }) => {
    const { kept, call } = undoFrom(redacting(['args', 'tokens']), template, { args });
    expect(decodeUndoArgs(KEY, call)).toEqual(expect.any(Object));
    return JSON.parse(kept?.args ?? 'null') as Json;
  };

  it.each<[string, Json, Json]>([
    ['as it is', { t: '${args.tokens}', order: '${args.order}' }, { t: '[redacted]', order: 'o-1' }],
    ['within the arguments', { all: '${args}' }, { all: { tokens: '[redacted]', order: 'o-1' } }],
    ['as all the arguments', '${args.tokens}', '[redacted]'],
    ['in part', { t: '${args.tokens.pk_live_y}' }, { t: ['[redacted]'] }],
    ['as a list of its names', { t: '${args.tokens.map(name, name)}' }, { t: '[redacted]' }],
    [
      'in an expression that fails without it',
      { t: '${args.tokens}', n: '${args.tokens.pk_live_y[0].z_live + 1.0}' },
      { t: '[redacted]', n: '[redacted]' },
    ],
  ])('hides the names of its members when it is used %s', (_, template, shown) => {
    expect(shownOf(template)).toEqual(shown);
  });

  it('hides them even if one of them is "[redacted]"', () => {
    expect(shownOf({ t: '${args.tokens}' }, { tokens: { '[redacted]': 1, sk_live: 2 } })).toEqual({ t: '[redacted]' });
  });

  it('shows the values next to it', () => {
    expect(shownOf({ a: { t: '${args.tokens}', why: 'undone', n: 3 } })).toEqual({
      a: { t: '[redacted]', why: 'undone', n: 3 },
    });
  });
});
