// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { describe, expect, it } from 'vitest';
import { findLockNameFault, isPrefixLock, listCoveringPrefixes } from '../../gateway/domain/controls/lock.ts';
import type { JsonObject } from '../../gateway/domain/json.ts';
import { ExpressionError, type LockSpec, type Tool } from '../../gateway/domain/policy.ts';
import { buildLockRequest } from '../../gateway/flow/controls/locks.ts';
import { compileLock, LOCK_VARIABLES } from '../../gateway/policy/compile/compile-locks.ts';

function compileKey(key: string) {
  const faults: string[] = [];
  const lock = compileLock(key, { variables: LOCK_VARIABLES, reportFault: (message) => faults.push(message) });
  return { faults, names: (args: JsonObject) => lock.keys({ args, agent: 'a', saga: null, run: null }) };
}

describe('the names of a lock', () => {
  it.each<[string, JsonObject, string[]]>([
    ['nightly', {}, ['nightly']],
    ['card/${args.card}', { card: '4242' }, ['card/4242']],
    ['card/${args.card}', { card: 7 }, ['card/7']],
    ['card/${args.card}', { card: 'a/b' }, ['card/a%2Fb']],
    ['card/${args.card}', { card: '*' }, ['card/%2A']],
    ['card/${args.card}', { card: '%2A' }, ['card/%252A']],
    ['card/${args.cards}', { cards: ['a', 'b'] }, ['card/a', 'card/b']],
    ['card/${args.cards}', { cards: [] }, []],
    ['${args.a}/${args.b}', { a: ['1', '2'], b: ['x', 'y'] }, ['1/x', '1/y', '2/x', '2/y']],
    ['table/${args.t}/*', { t: 't' }, ['table/t/*']],
    ['${args.paths}', { paths: ['a/b', 'c/*'] }, ['a/b', 'c/*']],
    ['${"one/" + args.id}', { id: 'x' }, ['one/x']],
    ['of ${agent}', {}, ['of a']],
  ])('%s of %j', (key, args, names) => {
    const lock = compileKey(key);
    expect(lock.faults).toEqual([]);
    expect(lock.names(args)).toEqual(names);
  });

  it.each<[string, JsonObject, string]>([
    ['card/${args.card}', {}, 'card'],
    ['card/${args.card}', { card: null }, 'must yield text'],
    ['card/${args.card}', { card: { deep: 1 } }, 'must yield text'],
    ['card/${args.card}', { card: '' }, 'empty segment'],
    ['${args.paths}', { paths: ['a/*/b'] }, 'not its last segment'],
    ['${args.paths}', { paths: '*' }, 'everything'],
    ['card/${args.cards}', { cards: Array.from({ length: 10_001 }, String) }, 'at most 10000 locks'],
    ['${args.cards}', { cards: Array.from({ length: 10_001 }, String) }, 'at most 10000 locks'],
    ['${args.a}/${args.a}', { a: Array.from({ length: 101 }, String) }, 'at most 10000 locks'],
    ['${args.paths}', { paths: ['a', 'a/'.repeat(16).concat('a')] }, 'more than 16 segments'],
  ])('%s cannot be evaluated (%#)', (key, args, message) => {
    const lock = compileKey(key);
    expect(() => lock.names(args)).toThrow(ExpressionError);
    expect(() => lock.names(args)).toThrow(message);
  });

  it.each([
    ['card//${args.card}', 'empty segment'],
    ['*', 'everything'],
    ['*/${args.card}', 'not its last segment'],
    ['card/${args.card', 'no closing }'],
    ['card/${resutl.id}', 'resutl'],
  ])('%s is a fault at load', (key, message) => {
    expect(compileKey(key).faults.join()).toContain(message);
  });
});

describe('the locks of a call', () => {
  const lock: LockSpec = { keys: ({ args }) => (args?.['names'] as string[]) ?? [], mode: 'exclusive', for: 'call' };
  const tool = { name: 't.pay', locks: [lock, lock], redact: [] } as unknown as Tool;
  const buildRequest = (count: number, name: (i: number) => string) => {
    const args = { names: Array.from({ length: count }, (_, i) => name(i)) };
    return buildLockRequest({ sealingKey: Buffer.alloc(32) }, tool, {
      txn: 'x',
      agent: 'a',
      args,
      saga: null,
      run: null,
    });
  };

  it('are at most 10000', () => {
    expect(buildRequest(5_000, String)?.locks).toHaveLength(10_000);
    expect(() => buildRequest(5_001, String)).toThrow(
      'These arguments need too many locks of t.pay: more than 10000 locks.',
    );
  });

  it('have at most 40000 segments in total', () => {
    const deep = (i: number) => `a/b/c/d/e/f/g/${i}`;
    expect(buildRequest(2_500, deep)?.locks).toHaveLength(5_000);
    expect(() => buildRequest(2_501, deep)).toThrow('more than 40000 segments in all names');
  });
});

it('listCoveringPrefixes lists the prefix locks that cover a name', () => {
  expect(listCoveringPrefixes('a')).toEqual([]);
  expect(listCoveringPrefixes('a/b/c')).toEqual(['a/*', 'a/b/*']);
  expect(listCoveringPrefixes('a/b/*')).toEqual(['a/*']);
  expect(listCoveringPrefixes('a/*')).toEqual([]);
  expect([isPrefixLock('a/*'), isPrefixLock('a*'), findLockNameFault('a*')]).toEqual([true, false, undefined]);
});
