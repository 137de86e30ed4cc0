import { expect, it } from 'vitest';
import { Dispatch } from '../../gateway/flow/attempts/dispatch.ts';
import { Claims } from '../../gateway/flow/calls/claims.ts';
import type { Context } from '../../gateway/flow/context.ts';
import type { NewCall } from '../../gateway/ledger/calls/claim.ts';
import { buildNewCall } from '../support/call-record.ts';
import { useCallStore, useLease, useLedger } from '../support/use-ledger.ts';

const { db } = useLedger();
const calls = useCallStore(db);
const lease = useLease(db);

/** More turns of the microtask queue than the end of a claim needs. */
const MAX_TURNS = 1_000;

it('a won call is pending or in flight at every moment, so nothing else claims or recovers it', async () => {
  const newCall = buildNewCall(lease.id);
  const { txn } = newCall;
  const states = new Set<string>();
  let isDone = false;
  const watch = async () => {
    for (let turn = 0; turn < MAX_TURNS && !isDone; turn += 1) {
      const isInFlight = dispatch.findInFlight(txn) !== undefined;
      states.add(isInFlight ? 'in flight' : claims.isClaimPending(txn) ? 'pending' : 'unknown');
      await null;
    }
  };
  let watching: Promise<void> | undefined;
  const claim = async (won: NewCall) => {
    const result = await calls.claim(won);
    watching ??= watch();
    return result;
  };
  const ctx = { calls: { claim }, reachKillPoint: () => {} } as unknown as Context;
  const dispatch = new Dispatch(ctx);
  const claims = new Claims(ctx, dispatch);

  const source = { tool: {}, payload: { args: {}, request: {} } } as unknown as Parameters<Claims['claim']>[2];
  const claimed = await claims.claim(newCall, undefined, source);
  isDone = true;
  await watching;
  expect(claimed.kind).toBe('registered');
  expect(states).toEqual(new Set(['pending', 'in flight']));
});

it('a shutdown waits for a registered call, also before its first attempt has started', async () => {
  const { record } = buildNewCall(lease.id);
  const dispatch = new Dispatch({} as Context);
  let finish = () => {};
  const result = new Promise<void>((resolve) => (finish = resolve));
  dispatch.register({ record, result } as never);
  const events: string[] = [];
  const drained = dispatch.drain(60_000).then(() => events.push('drained'));
  // A drain that waits for nothing ends within a turn of the event loop.
  await new Promise((resolve) => setImmediate(resolve));
  events.push('finished');
  finish();
  await drained;
  expect(events).toEqual(['finished', 'drained']);
});
