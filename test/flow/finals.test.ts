import { afterEach, describe, expect, it, vi } from 'vitest';
import type { CallSummary } from '../../gateway/domain/calls/call.ts';
import { ReplayCache } from '../../gateway/flow/calls/replay-cache.ts';

const FINGERPRINT = Buffer.alloc(32, 7);
const face = (txn: string, more: Partial<CallSummary> = {}): CallSummary => ({
  txn,
  agent: 'a',
  tool: 't',
  identity: 'key',
  state: 'succeeded',
  attempt: 1,
  answer: { status: 200, contentType: 'application/json', body: '{}', encoding: 'utf8' },
  outcome: 'answered',
  problem: null,
  detail: null,
  leaf: null,
  saga: null,
  pursued: false,
  ...more,
});

afterEach(() => {
  vi.useRealTimers();
});

describe('final answers of a moment ago', () => {
  it('are remembered for a minute, and no longer than their payload is kept', () => {
    vi.useFakeTimers({ toFake: ['performance'] });
    const [long, short] = [new ReplayCache(86_400_000), new ReplayCache(1_000)];
    for (const finals of [long, short]) finals.keep(face('x'), FINGERPRINT, 400);
    vi.advanceTimersByTime(599);
    expect(short.get('x')?.face.txn).toBe('x');
    vi.advanceTimersByTime(2);
    expect(short.get('x')).toBeUndefined();
    expect(long.get('x')?.face.txn).toBe('x');
    vi.advanceTimersByTime(59_400);
    expect(long.get('x')).toBeUndefined();
    long.keep(face('old'), FINGERPRINT, 86_400_000);
    expect(long.get('old')).toBeUndefined();
    long.keep(face('yesterday'), FINGERPRINT, 80_000_000);
    expect(long.get('yesterday')?.face.txn).toBe('yesterday');
  });

  it('are those of calls with a key only', () => {
    const finals = new ReplayCache(86_400_000);
    for (const identity of ['repeat', 'random', 'undo', 'shared'] as const)
      finals.keep(face(identity, { identity }), FINGERPRINT, 0);
    finals.keep(face('business', { identity: 'business' }), FINGERPRINT, 0);
    expect(['repeat', 'random', 'undo', 'shared', 'business'].filter((txn) => finals.get(txn) !== undefined)).toEqual([
      'business',
    ]);
  });

  it('never take more memory than they may: the oldest go first, the large ones are not kept', () => {
    const finals = new ReplayCache(86_400_000, 64_000);
    const body = 'x'.repeat(1_000);
    const answer = { status: 200, contentType: null, body, encoding: 'utf8' } as const;
    for (let i = 0; i < 1_000; i++) finals.keep(face(`t${i}`, { answer }), FINGERPRINT, 0);
    const kept = Array.from({ length: 1_000 }, (_, i) => i).filter((i) => finals.get(`t${i}`) !== undefined);
    expect(kept.length).toBeGreaterThan(10);
    expect(kept.length).toBeLessThanOrEqual(64_000 / 2_600);
    expect(kept.at(-1)).toBe(999);
    finals.keep(face('large', { answer: { ...answer, body: 'x'.repeat(10_000) } }), FINGERPRINT, 0);
    expect(finals.get('large')).toBeUndefined();
  });

  it('are known by the key of their agent, and by what they were asked with: byte for byte, of the same tool', () => {
    const finals = new ReplayCache(86_400_000);
    finals.keep(face('x'), FINGERPRINT, 0);
    expect(finals.underKey('a', 'k')).toBeUndefined();
    finals.noteKey('x', FINGERPRINT, { agent: 'a', key: 'k', body: '{"n":1}' });
    expect(finals.underKey('a', 'k')?.face.txn).toBe('x');
    expect(finals.underKey('b', 'k')).toBeUndefined();
    expect(finals.askedWith('{"n":1}', 'a', 'k', 't')?.face.txn).toBe('x');
    expect(finals.askedWith('{"n": 1}', 'a', 'k', 't')).toBeUndefined();
    expect(finals.askedWith('{"n":1}', 'a', 'k', 't2')).toBeUndefined();
    expect(finals.askedWith('{"n":1}', 'b', 'k', 't')).toBeUndefined();
  });

  it('are not known by the key of a request that they do not answer, nor by a body that must not be kept', () => {
    const finals = new ReplayCache(86_400_000);
    for (const txn of ['x', 'y']) finals.keep(face(txn), FINGERPRINT, 0);
    finals.noteKey('x', Buffer.alloc(32, 8), { agent: 'a', key: 'other', body: '{}' });
    finals.noteKey('never kept', FINGERPRINT, { agent: 'a', key: 'none', body: '{}' });
    finals.noteKey('y', FINGERPRINT, { agent: 'a', key: 'secret', body: undefined });
    expect(['other', 'none', 'secret'].map((key) => finals.underKey('a', key)?.face.txn)).toEqual([
      undefined,
      undefined,
      'y',
    ]);
    expect(finals.askedWith('{}', 'a', 'secret', 't')).toBeUndefined();
  });

  it('take memory for what they were asked with too', () => {
    const finals = new ReplayCache(86_400_000, 64_000);
    for (let i = 0; i < 1_000; i++) {
      finals.keep(face(`t${i}`), FINGERPRINT, 0);
      finals.noteKey(`t${i}`, FINGERPRINT, { agent: 'a', key: `k${i}`, body: 'x'.repeat(4_000) });
    }
    const kept = Array.from({ length: 1_000 }, (_, i) => i).filter((i) => finals.underKey('a', `k${i}`) !== undefined);
    expect(kept.length).toBeGreaterThan(4);
    expect(kept.length).toBeLessThanOrEqual(64_000 / 6_000 + 2);
    expect(kept.at(-1)).toBe(999);
  });

  it('take no more of it when many are kept before the first of them is told', () => {
    const finals = new ReplayCache(86_400_000, 64_000);
    for (let i = 0; i < 12; i++) finals.keep(face(`t${i}`), FINGERPRINT, 0);
    for (let i = 0; i < 12; i++)
      finals.noteKey(`t${i}`, FINGERPRINT, { agent: 'a', key: `k${i}`, body: 'x'.repeat(3_000) });
    const all = Array.from({ length: 12 }, (_, i) => `k${i}`);
    expect(all.filter((key) => finals.underKey('a', key) !== undefined)).toHaveLength(12);
    const withBody = all.filter((key) => finals.askedWith('x'.repeat(3_000), 'a', key, 't') !== undefined);
    expect(withBody).toEqual(['k0', 'k1']);
  });

  it('are forgotten at once when told to', () => {
    const finals = new ReplayCache(86_400_000);
    finals.keep(face('x'), FINGERPRINT, 0);
    finals.noteKey('x', FINGERPRINT, { agent: 'a', key: 'k', body: '{}' });
    finals.clear();
    expect(finals.get('x')).toBeUndefined();
    expect(finals.underKey('a', 'k')).toBeUndefined();
    expect(finals.askedWith('{}', 'a', 'k', 't')).toBeUndefined();
  });

  it('that were read before everything was forgotten do not come back after it', () => {
    const finals = new ReplayCache(86_400_000);
    const asOf = finals.asOf();
    finals.clear();
    finals.keep(face('erased'), FINGERPRINT, 0, asOf);
    expect(finals.get('erased')).toBeUndefined();
    finals.keep(face('read since'), FINGERPRINT, 0, finals.asOf());
    expect(finals.get('read since')).toBeDefined();
  });

  it('grow old from when the ledger was asked, not from when it answered', () => {
    vi.useFakeTimers({ toFake: ['performance'] });
    const finals = new ReplayCache(1_000);
    const asOf = finals.asOf();
    vi.advanceTimersByTime(900);
    finals.keep(face('slow'), FINGERPRINT, 0, asOf);
    expect(finals.get('slow')).toBeDefined();
    vi.advanceTimersByTime(101);
    expect(finals.get('slow')).toBeUndefined();
  });
});
