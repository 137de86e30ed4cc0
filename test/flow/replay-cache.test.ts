import { afterEach, describe, expect, it, vi } from 'vitest';
import { type CallRecord, createCallRecord, withoutPayload } from '../../gateway/domain/calls/call-record.ts';
import { ReplayCache } from '../../gateway/flow/calls/replay-cache.ts';

const FINGERPRINT = Buffer.alloc(32, 7);
const BASE = {
  agent: 'a',
  tool: 't',
  identity: 'key',
  fingerprint: FINGERPRINT,
  kind: 'none',
  policyVersion: 'v',
} as const;
const answered = (txn: string, more: Partial<CallRecord> = {}): CallRecord => ({
  ...createCallRecord({ ...BASE, txn, fence: 1, state: 'sending', owner: 'o' }),
  state: 'succeeded',
  answer: { status: 200, contentType: 'application/json', body: '{}', encoding: 'utf8' },
  outcome: 'answered',
  owner: null,
  ...more,
});

afterEach(() => {
  vi.useRealTimers();
});

describe('the replay cache', () => {
  it('keeps an answer for a minute, and no longer than the retention of its payload', () => {
    vi.useFakeTimers({ toFake: ['performance'] });
    const [long, short] = [new ReplayCache(86_400_000), new ReplayCache(1_000)];
    for (const cache of [long, short]) cache.add(answered('x'), FINGERPRINT, 400);
    vi.advanceTimersByTime(599);
    expect(short.get('x')?.call.txn).toBe('x');
    vi.advanceTimersByTime(2);
    expect(short.get('x')).toBeUndefined();
    expect(long.get('x')?.call.txn).toBe('x');
    vi.advanceTimersByTime(59_400);
    expect(long.get('x')).toBeUndefined();
    long.add(answered('old'), FINGERPRINT, 86_400_000);
    expect(long.get('old')).toBeUndefined();
    long.add(answered('yesterday'), FINGERPRINT, 80_000_000);
    expect(long.get('yesterday')?.call.txn).toBe('yesterday');
  });

  it('keeps only answers of calls with a key', () => {
    const cache = new ReplayCache(86_400_000);
    for (const identity of ['repeat', 'random', 'undo', 'shared'] as const)
      cache.add(answered(identity, { identity }), FINGERPRINT, 0);
    cache.add(answered('business', { identity: 'business' }), FINGERPRINT, 0);
    expect(['repeat', 'random', 'undo', 'shared', 'business'].filter((txn) => cache.get(txn) !== undefined)).toEqual([
      'business',
    ]);
  });

  it('keeps nothing of the payload but the answer', () => {
    const cache = new ReplayCache(86_400_000);
    const undo = { kind: 'compensable', tool: 't', template: { id: 1 } } as const;
    const sealed = Buffer.alloc(8);
    const call = answered('x', { args: '{}', sealed, undo, undoArgs: '{}', undoSealed: sealed, before: '{}' });
    cache.add(call, FINGERPRINT, 0);
    expect(cache.get('x')?.call).toEqual(withoutPayload(call));
    expect(cache.get('x')?.call).toMatchObject({ args: null, sealed: null, undo: null, undoArgs: null, before: null });
  });

  it('stays within its memory limit: drops the oldest answers first and skips large ones', () => {
    const cache = new ReplayCache(86_400_000, 64_000);
    const body = 'x'.repeat(1_000);
    const answer = { status: 200, contentType: null, body, encoding: 'utf8' } as const;
    for (let i = 0; i < 1_000; i++) cache.add(answered(`t${i}`, { answer }), FINGERPRINT, 0);
    const kept = Array.from({ length: 1_000 }, (_, i) => i).filter((i) => cache.get(`t${i}`) !== undefined);
    expect(kept.length).toBeGreaterThan(10);
    expect(kept.length).toBeLessThanOrEqual(64_000 / 2_600);
    expect(kept.at(-1)).toBe(999);
    cache.add(answered('large', { answer: { ...answer, body: 'x'.repeat(10_000) } }), FINGERPRINT, 0);
    expect(cache.get('large')).toBeUndefined();
  });

  it('finds an answer by agent and key, and by a byte-identical body for the same tool', () => {
    const cache = new ReplayCache(86_400_000);
    cache.add(answered('x'), FINGERPRINT, 0);
    expect(cache.getByKey('a', 'k')).toBeUndefined();
    cache.addKey('x', FINGERPRINT, { agent: 'a', key: 'k', body: '{"n":1}' });
    expect(cache.getByKey('a', 'k')?.call.txn).toBe('x');
    expect(cache.getByKey('b', 'k')).toBeUndefined();
    expect(cache.getByBody('{"n":1}', 'a', 'k', 't')?.call.txn).toBe('x');
    expect(cache.getByBody('{"n": 1}', 'a', 'k', 't')).toBeUndefined();
    expect(cache.getByBody('{"n":1}', 'a', 'k', 't2')).toBeUndefined();
    expect(cache.getByBody('{"n":1}', 'b', 'k', 't')).toBeUndefined();
  });

  it('does not find an answer by the key of another request, nor by a body that must not be kept', () => {
    const cache = new ReplayCache(86_400_000);
    for (const txn of ['x', 'y']) cache.add(answered(txn), FINGERPRINT, 0);
    cache.addKey('x', Buffer.alloc(32, 8), { agent: 'a', key: 'other', body: '{}' });
    cache.addKey('never kept', FINGERPRINT, { agent: 'a', key: 'none', body: '{}' });
    cache.addKey('y', FINGERPRINT, { agent: 'a', key: 'secret', body: undefined });
    expect(['other', 'none', 'secret'].map((key) => cache.getByKey('a', key)?.call.txn)).toEqual([
      undefined,
      undefined,
      'y',
    ]);
    expect(cache.getByBody('{}', 'a', 'secret', 't')).toBeUndefined();
  });

  it('counts request bodies as memory', () => {
    const cache = new ReplayCache(86_400_000, 64_000);
    for (let i = 0; i < 1_000; i++) {
      cache.add(answered(`t${i}`), FINGERPRINT, 0);
      cache.addKey(`t${i}`, FINGERPRINT, { agent: 'a', key: `k${i}`, body: 'x'.repeat(4_000) });
    }
    const kept = Array.from({ length: 1_000 }, (_, i) => i).filter((i) => cache.getByKey('a', `k${i}`) !== undefined);
    expect(kept.length).toBeGreaterThan(4);
    expect(kept.length).toBeLessThanOrEqual(64_000 / 6_000 + 2);
    expect(kept.at(-1)).toBe(999);
  });

  it('keeps no more bodies when many answers were added before the first key', () => {
    const cache = new ReplayCache(86_400_000, 64_000);
    for (let i = 0; i < 12; i++) cache.add(answered(`t${i}`), FINGERPRINT, 0);
    for (let i = 0; i < 12; i++)
      cache.addKey(`t${i}`, FINGERPRINT, { agent: 'a', key: `k${i}`, body: 'x'.repeat(3_000) });
    const all = Array.from({ length: 12 }, (_, i) => `k${i}`);
    expect(all.filter((key) => cache.getByKey('a', key) !== undefined)).toHaveLength(12);
    const withBody = all.filter((key) => cache.getByBody('x'.repeat(3_000), 'a', key, 't') !== undefined);
    expect(withBody).toEqual(['k0', 'k1']);
  });

  it('forgets everything when cleared', () => {
    const cache = new ReplayCache(86_400_000);
    cache.add(answered('x'), FINGERPRINT, 0);
    cache.addKey('x', FINGERPRINT, { agent: 'a', key: 'k', body: '{}' });
    cache.clear();
    expect(cache.get('x')).toBeUndefined();
    expect(cache.getByKey('a', 'k')).toBeUndefined();
    expect(cache.getByBody('{}', 'a', 'k', 't')).toBeUndefined();
  });

  it('does not add an answer that was read before the cache was cleared', () => {
    const cache = new ReplayCache(86_400_000);
    const version = cache.readVersion();
    cache.clear();
    cache.add(answered('erased'), FINGERPRINT, 0, version);
    expect(cache.get('erased')).toBeUndefined();
    cache.add(answered('read since'), FINGERPRINT, 0, cache.readVersion());
    expect(cache.get('read since')).toBeDefined();
  });

  it('counts the age of an answer from before the ledger read', () => {
    vi.useFakeTimers({ toFake: ['performance'] });
    const cache = new ReplayCache(1_000);
    const version = cache.readVersion();
    vi.advanceTimersByTime(900);
    cache.add(answered('slow'), FINGERPRINT, 0, version);
    expect(cache.get('slow')).toBeDefined();
    vi.advanceTimersByTime(101);
    expect(cache.get('slow')).toBeUndefined();
  });
});
