import { isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type CallIdentity,
  computeFingerprint,
  deriveRepeatSlot,
  deriveSharedTxnId,
  deriveTxnId,
} from '../../gateway/domain/calls/txn-id.ts';
import { canonicalize } from '../../gateway/domain/canonical.ts';

const UUID_V8 = /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const CHARGE = '67d8b0051156f3788af41871ab5a5127ccf614f842058c1361e8180ea36fb988';

/** Short words of few letters, so that two of them often join to the same text, and special characters of JSON. */
const word = fc.oneof(
  fc.string({ unit: fc.constantFrom('a', 'b', '"', ',', ':', '[', ']', '\\', '0', '1'), maxLength: 3 }),
  fc.constantFrom('key', 'business', 'null', 'é', '\ufffd', '\ud83d', '\u0000'),
);
const maybe = fc.option(word, { nil: null });
const print = fc.uint8Array({ maxLength: 2 }).map((bytes) => Buffer.from(bytes));
const identity: fc.Arbitrary<CallIdentity> = fc.oneof(
  fc.record({ by: fc.constant('key' as const), key: word }),
  fc.record({ by: fc.constant('business' as const), tool: word, key: word }),
  fc.record({
    by: fc.constant('repeat' as const),
    fingerprint: print,
    saga: maybe,
    run: maybe,
    generation: fc.nat(11),
  }),
  fc.record({ by: fc.constant('undo' as const), of: word, generation: fc.nat(11) }),
  fc.record({ by: fc.constant('random' as const), nonce: word }),
);

describe('deriveTxnId', () => {
  // Computed with Python's hashlib and json. These values must never change: a retry must derive the id of its first call.
  it.each<[CallIdentity, string]>([
    [{ by: 'key', key: 'order-1' }, '2315d206-23e4-866c-98a0-e0c6f5eaf55d'],
    [{ by: 'business', tool: 'payments.charge', key: 'order-1' }, '5b39794f-b2b8-8283-aedc-f7894405e68d'],
    [
      { by: 'repeat', fingerprint: Buffer.from(CHARGE, 'hex'), saga: null, run: 'run-1', generation: 0 },
      'f39ce585-04c8-807d-9395-771b66d6de00',
    ],
    [{ by: 'undo', of: '7c0e0000-0000-8000-8000-000000000000', generation: 0 }, '59fb7643-7516-8095-9d7b-13de669b4560'],
    [{ by: 'random', nonce: 'n-1' }, '7d6d4ae3-1484-85c5-b020-fa8c32d3faa1'],
  ])('never changes: %j', (identity, id) => {
    expect(deriveTxnId('dep', 'agent-é', identity)).toBe(id);
  });

  it('is a lowercase UUIDv8', () => {
    fc.assert(
      fc.property(word, word, identity, (deployment, agent, identity) => {
        expect(deriveTxnId(deployment, agent, identity)).toMatch(UUID_V8);
      }),
      { numRuns: 1000 },
    );
  });

  it('uses every variant, and every digit occurs', () => {
    const ids = Array.from({ length: 500 }, (_, n) => deriveTxnId('d', 'a', { by: 'key', key: String(n) }));
    expect(new Set(ids.map((id) => id.charAt(19)))).toEqual(new Set(['8', '9', 'a', 'b']));
    for (const place of [0, 15, 20, 35]) expect(new Set(ids.map((id) => id.charAt(place))).size).toBe(16);
  });

  it('is equal for equal calls and differs for different ones', () => {
    const call = fc.tuple(word, word, identity);
    fc.assert(
      fc.property(call, call, (one, other) => {
        expect(deriveTxnId(...one) === deriveTxnId(...other)).toBe(isDeepStrictEqual(one, other));
        expect(deriveTxnId(...cloneCall(one))).toBe(deriveTxnId(...one));
      }),
      { numRuns: 5000 },
    );
  });

  it('keeps adjacent parts apart', () => {
    const print = Buffer.from('00ff', 'hex');
    const repeat = { by: 'repeat', fingerprint: print, saga: null, run: null, generation: 0 } as const;
    const ids = [
      deriveTxnId('d', 'a', { by: 'key', key: 'k' }),
      deriveTxnId('da', '', { by: 'key', key: 'k' }),
      deriveTxnId('', 'da', { by: 'key', key: 'k' }),
      deriveTxnId('d', 'a', { by: 'undo', of: 'k', generation: 0 }),
      deriveTxnId('d', 'a', { by: 'random', nonce: 'k' }),
      deriveTxnId('d', 'a', { by: 'business', tool: 'k', key: '' }),
      deriveTxnId('d', 'a', { by: 'business', tool: '', key: 'k' }),
      deriveTxnId('d', 'a', { by: 'key', key: '","k' }),
      deriveTxnId('d', 'a', repeat),
      deriveTxnId('d', 'a', { ...repeat, generation: 1 }),
      deriveTxnId('d', 'a', { ...repeat, saga: 'null' }),
      deriveTxnId('d', 'a', { ...repeat, saga: '' }),
      deriveTxnId('d', 'a', { ...repeat, saga: 's' }),
      deriveTxnId('d', 'a', { ...repeat, run: 's' }),
      deriveTxnId('d', 'a', { ...repeat, fingerprint: Buffer.from('00fe', 'hex') }),
      deriveTxnId('d', 'a', { by: 'key', key: '\ud83d' }),
      deriveTxnId('d', 'a', { by: 'key', key: '\ufffd' }),
      deriveRepeatSlot('d', 'a', print, null, null),
    ];
    expect(new Set(ids).size).toBe(ids.length);
  });

  it('refuses a generation that JSON cannot represent exactly', () => {
    for (const generation of [Number.NaN, Number.POSITIVE_INFINITY, 0.5, 2 ** 53]) {
      const identity = { by: 'repeat', fingerprint: Buffer.alloc(32), saga: null, run: null, generation } as const;
      expect(() => deriveTxnId('d', 'a', identity)).toThrow(RangeError);
    }
  });
});

describe('deriveSharedTxnId', () => {
  // Computed with Python's hashlib and json.
  it('never changes', () => {
    expect(deriveSharedTxnId('dep', 'tickets.close', 'é-1')).toBe('036e4765-3491-8df0-916c-6404ba03915f');
  });

  it('is equal for equal keys, differs for different ones, and never equals the txn of an agent', () => {
    const parts = fc.tuple(word, word, word);
    fc.assert(
      fc.property(parts, parts, identity, (one, other, agentIdentity) => {
        expect(deriveSharedTxnId(...one) === deriveSharedTxnId(...other)).toBe(isDeepStrictEqual(one, other));
        expect(deriveSharedTxnId(...one)).not.toBe(deriveTxnId(one[0], one[1], agentIdentity));
      }),
      { numRuns: 5000 },
    );
    const business = { by: 'business', tool: 't', key: 'k' } as const;
    for (const agent of ['', 'shared', 't'])
      expect(deriveSharedTxnId('d', 't', 'k')).not.toBe(deriveTxnId('d', agent, business));
  });
});

describe('deriveRepeatSlot', () => {
  it('never changes', () => {
    const slot = deriveRepeatSlot('dep', 'agent-é', Buffer.from(CHARGE, 'hex'), null, 'run-1');
    expect(slot).toBe('2aef9c90-b1a6-84e5-b724-6f23d26db792');
    expect(slot).toMatch(UUID_V8);
  });

  it('is equal for equal parts and differs for different ones', () => {
    const parts = fc.tuple(word, word, print, maybe, maybe);
    fc.assert(
      fc.property(parts, parts, (one, other) => {
        expect(deriveRepeatSlot(...one) === deriveRepeatSlot(...other)).toBe(isDeepStrictEqual(one, other));
      }),
      { numRuns: 5000 },
    );
  });

  it('distinguishes saga from run, and null from empty', () => {
    const slots = [
      [null, null],
      ['', null],
      [null, ''],
      ['x', null],
      [null, 'x'],
      ['null', null],
    ].map(([saga, run]) => deriveRepeatSlot('d', 'a', Buffer.alloc(32), saga ?? null, run ?? null));
    expect(new Set(slots).size).toBe(slots.length);
  });
});

describe('computeFingerprint', () => {
  it('is SHA-256 over the canonical text of [tool, arguments]', () => {
    const print = computeFingerprint('payments.charge', canonicalize({ amount: 5 }));
    expect(print).toBeInstanceOf(Buffer);
    expect(print.toString('hex')).toBe(CHARGE);
  });

  it('is equal for equal calls and differs for different ones', () => {
    // The arguments need not be JSON here, because the encoded tool is self-delimiting. They have no lone surrogates, like canonical text.
    const call = fc.tuple(
      word,
      word.filter((text) => text !== '\ud83d'),
    );
    fc.assert(
      fc.property(call, call, (one, other) => {
        expect(computeFingerprint(...one).equals(computeFingerprint(...other))).toBe(isDeepStrictEqual(one, other));
      }),
      { numRuns: 5000 },
    );
    expect(computeFingerprint('a', '"b"]')).not.toEqual(computeFingerprint('a","b"', ']'));
    expect(computeFingerprint('ab', '{}')).not.toEqual(computeFingerprint('a', 'b{}'));
  });
});

/** A copy of a call, to show that only the values count. */
function cloneCall([deployment, agent, identity]: [string, string, CallIdentity]): [string, string, CallIdentity] {
  const copy =
    identity.by === 'repeat' ? { ...identity, fingerprint: Buffer.from(identity.fingerprint) } : { ...identity };
  return [`${deployment}`, `${agent}`, copy];
}
