import { createHash, randomUUID } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import type { CallEvent } from '../../gateway/domain/calls/call-record.ts';
import { CALL_STATES, isFinalState } from '../../gateway/domain/calls/call-state.ts';
import { UNDO_STATES } from '../../gateway/domain/sagas/saga.ts';
import { readCallEvents } from '../../gateway/ledger/calls/call-events.ts';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { findNewestRepeat } from '../../gateway/ledger/calls/repeats.ts';
import { areSendersGone } from '../../gateway/ledger/calls/verdicts.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { insertRow } from '../support/call-rows.ts';
import type { TestDatabase } from '../support/database.ts';
import { createOlderDatabaseForTest, migrateBefore } from '../support/older-schema.ts';
import { stopAfterTest } from '../support/use-resource.ts';

/** Migrations 0020 to 0022 carry the calls of one wide table over to the tables of the split ledger. */

type Row = Readonly<Record<string, unknown>>;

const OWNER = randomUUID();
const [SAGA, RUN] = [randomUUID(), randomUUID()];
let database: TestDatabase;

beforeEach(async () => {
  database = await createOlderDatabaseForTest('0020');
});

const json = (value: unknown) => JSON.stringify(value);
const at = (micros: number) => `2026-01-02T03:04:05.${String(micros).padStart(6, '0')}Z`;

/** Inserts a call into the old table, and its old open row unless it has ended. */
async function insertOldCall(columns: Row, opening: Row = {}): Promise<string> {
  const txn = randomUUID();
  const intent = {
    ...{ agent: 'a', tool: 't', key: `k-${txn}`, identity: 'key', kind: 'key', policy_version: 'v', rule: 'r' },
    fingerprint: createHash('sha256').update(txn).digest(),
    ...{ args: '{"n":1}', request: '{"method":"POST"}', sealed: Buffer.from('sealed'), key_lifetime_ms: 86_400_000 },
    ...{ undo: '{"kind":"none"}', created_at: at(123_457) },
  };
  await insertRow(database, 'calls', { txn, fence: 41, ...intent, ...columns });
  if (!isFinalState(columns['state'] as never)) await insertRow(database, 'open_calls', { txn, ...opening });
  return txn;
}

/** The columns that a state requires, and as many others as it can have. */
function describeState(state: string): Row {
  const wasSent = ['sending', 'in_doubt', 'succeeded', 'failed'].includes(state);
  const sent = { attempt: 3, first_sent_at: at(1), round_from: 1, round_at: at(2), owner_deaths: 2, step: 9 };
  const base = { state, ...(wasSent ? { ...sent, attempt_detail: 'the socket closed', lock_token: 77 } : { step: 1 }) };
  if (!isFinalState(state as never)) {
    const doubt = { unresolved: 2, unknown_since: at(3), detail: 'in doubt', disproved_by: 'probe' };
    return { ...base, ...(state === 'in_doubt' ? doubt : {}), ...(state === 'sending' ? { attempt_open: true } : {}) };
  }
  const ended = {
    settled_at: at(4),
    leaf: Buffer.alloc(32, 5),
    outcome: `as ${state}`,
    detail: 'why',
    delivered_at: at(5),
  };
  if (state === 'succeeded')
    return { ...base, ...ended, evidence: 'late_answer', answer: '{"status":200}', unresolved: 1 };
  return { ...base, ...ended, problem: 'tool_failed', ...(wasSent ? { evidence: 'probe', resolved_by: 'p' } : {}) };
}

async function insertEveryState(): Promise<void> {
  for (const state of CALL_STATES) {
    await insertOldCall(describeState(state), { owner: OWNER });
    await insertOldCall(describeState(state), { due_at: at(6) });
    await insertOldCall({ ...describeState(state), run: RUN, epoch: 4, recalled: true, fenced: true }, { run: RUN });
    await insertOldCall({ ...describeState(state), run: RUN, epoch: 4, recalled: true });
  }
}

async function insertEveryUndo(): Promise<void> {
  const succeeded = describeState('succeeded');
  const undo = {
    undo_args: '{"id":1}',
    undo_sealed: Buffer.from('u'),
    before: '{"b":1}',
    undo_reason: 'in doubt, a person must resolve it',
  };
  for (const [i, state] of UNDO_STATES.entries()) {
    const columns = { undo_state: state, undo_txn: randomUUID(), undo_tries: 5, undo_from: 2, undo_since: at(7) };
    await insertOldCall({
      ...succeeded,
      saga: SAGA,
      ordinal: i + 1,
      ...columns,
      undo_due_at: at(8),
      undo_doubt: 'person',
    });
    await insertOldCall({
      ...succeeded,
      saga: SAGA,
      ordinal: i + 20,
      ...columns,
      ...undo,
      undo_doubt: state === 'failed' ? 'person' : null,
      depends_on: [randomUUID()],
    });
  }
  for (const [name, value] of Object.entries({ ...undo, waived: true }))
    await insertOldCall({ ...succeeded, [name]: value });
  await insertOldCall({ ...describeState('sending'), before: '{"b":2}' }, { owner: OWNER });
  await insertOldCall({ ...describeState('failed'), saga: SAGA, ordinal: 50, undo_state: 'skipped' });
  await insertOldCall({ ...succeeded, identity: 'undo', undo_of: randomUUID(), saga: SAGA });
}

async function insertEveryHistory(): Promise<void> {
  const events = ['vote', 'approved', 'attempt_ended', 'in_doubt'].map((what, i) => ({ at: at(10 + i), what, n: i }));
  await insertOldCall({ ...describeState('succeeded'), events: json(events) });
  await insertOldCall({ ...describeState('failed'), events: json(events), contradiction: 'it did happen' });
  await insertOldCall({ ...describeState('in_doubt'), events: json([...events, ...events]) }, { owner: OWNER });
  for (const resolver of ['person', null]) {
    const retried = { verdict: 'retry', resolved_by: resolver };
    await insertOldCall({ ...describeState('in_doubt'), ...retried, retry_requested: true }, { due_at: at(11) });
    await insertOldCall({ ...describeState('succeeded'), ...retried });
  }
  await insertOldCall({
    ...describeState('failed'),
    verdict: 'not_applied',
    resolved_by: 'person',
    evidence: 'person',
  });
  const payloads = ['key', 'args', 'request', 'sealed', 'answer', 'detail', 'undo', 'attempt_detail'];
  const erased = Object.fromEntries(payloads.map((name) => [name, null]));
  await insertOldCall({ ...describeState('succeeded'), ...erased, erased_at: at(12) });
  await insertOldCall({ ...describeState('cancelled'), ...erased, erased_at: at(12), contradiction: 'left' });
}

const readRows = async (table: string) =>
  new Map(
    (await database.query<{ txn: string; row: Row }>(`select txn, to_jsonb(t) as row from ${table} t`)).map(
      ({ txn, row }) => [txn, row],
    ),
  );

const pick = (row: Row, names: Readonly<Record<string, string>>) =>
  Object.fromEntries(Object.entries(names).map(([to, from]) => [to, row[from]]));
const same = (names: string) => Object.fromEntries(names.split(' ').map((name) => [name, name]));

const INTENT = same(
  'txn created_at key_lifetime_ms erased_at kind identity ordinal epoch saga run undo_of agent tool fingerprint policy_version rule key depends_on args request sealed undo',
);
const OPEN = {
  ...same('txn state fence attempt unresolved round_from owner_deaths attempt_open recalled fenced retry_requested'),
  ...same('round_at first_sent_at unknown_since lock_token detail attempt_detail disproved_by'),
  update_number: 'step',
};
const OUTCOME = same(
  'txn settled_at first_sent_at unknown_since lock_token state attempt owner_deaths leaf outcome problem resolved_by detail answer',
);
const UNDO = {
  ...same('txn waived before'),
  ...{ state: 'undo_state', tries: 'undo_tries', tries_from: 'undo_from', since: 'undo_since', due_at: 'undo_due_at' },
  ...{ undo_txn: 'undo_txn', reason: 'undo_reason', doubt: 'undo_doubt', args: 'undo_args', sealed: 'undo_sealed' },
};

const findRetriedBy = (old: Row) => (old['verdict'] === 'retry' ? (old['resolved_by'] ?? '') : null);
const hasUndo = (old: Row) =>
  old['undo_state'] !== 'none' ||
  old['waived'] === true ||
  old['undo_tries'] !== 0 ||
  ['undo_args', 'undo_sealed', 'undo_reason', 'before'].some((name) => old[name] !== null);

function listEvents(old: Row): Row[] {
  const events = old['events'] as Row[];
  if (old['contradiction'] === null) return events;
  return [...events, { at: old['settled_at'], what: 'contradiction', detail: old['contradiction'] }];
}

describe('the split of calls', () => {
  it('carries every kind of row over exactly', async () => {
    await insertEveryState();
    await insertEveryUndo();
    await insertEveryHistory();
    const [oldCalls, oldOpenings] = [await readRows('calls'), await readRows('open_calls')];

    const applied = await migrateBefore(database, '0023');
    expect(applied.map((name) => name.slice(0, 4))).toEqual(['0020', '0021', '0022']);

    const [calls, openCalls] = [await readRows('calls'), await readRows('open_calls')];
    const [settlements, undos] = [await readRows('settlements'), await readRows('undos')];
    const olds = [...oldCalls];
    const isOpen = (old: Row) => old['settled_at'] === null;
    const expectRows = (rows: ReadonlyMap<string, Row>, expected: readonly (readonly [string, Row])[]) => {
      expect(Object.fromEntries(rows)).toEqual(Object.fromEntries(expected));
    };
    expectRows(
      calls,
      olds.map(([txn, old]) => [txn, pick(old, INTENT)]),
    );
    expectRows(
      openCalls,
      olds
        .filter(([, old]) => isOpen(old))
        .map(([txn, old]) => {
          const opening = pick(oldOpenings.get(txn) ?? {}, same('owner due_at run'));
          return [txn, { ...pick(old, OPEN), ...opening, retried_by: findRetriedBy(old), former_owners: null }];
        }),
    );
    expectRows(
      settlements,
      olds
        .filter(([, old]) => !isOpen(old))
        .map(([txn, old]) => {
          const evidence = old['evidence'] ?? 'gateway';
          return [txn, { ...pick(old, OUTCOME), evidence, retried_by: findRetriedBy(old) }];
        }),
    );
    expectRows(
      undos,
      olds.filter(([, old]) => hasUndo(old)).map(([txn, old]) => [txn, pick(old, UNDO)]),
    );
    const timelines = olds
      .map(([txn, old]) => [txn, listEvents(old)] as const)
      .filter(([, events]) => events.length > 0);
    expect(await readEvents([...oldCalls.keys()])).toEqual(Object.fromEntries(timelines));
    expect(
      await database.query(
        `select to_regclass('calls_before_split') as calls, to_regclass('carried_over') as progress`,
      ),
    ).toEqual([{ calls: null, progress: null }]);
  });

  it('leaves calls that the code reads as before', async () => {
    const open = await insertOldCall(
      { ...describeState('in_doubt'), verdict: 'retry', resolved_by: 'p' },
      { owner: OWNER },
    );
    const ended = await insertOldCall({
      ...describeState('succeeded'),
      undo_state: 'due',
      undo_args: '{}',
      undo_tries: 1,
    });
    const rejected = await insertOldCall(describeState('rejected'));
    await migrateBefore(database, '0023');
    const calls = new CallStore(await connect());
    expect(await calls.read(open)).toMatchObject({
      ...{ state: 'in_doubt', fence: 41, updateNumber: 9, attempt: 3, attemptOpen: false, unresolved: 2, roundFrom: 1 },
      ...{ ownerDeaths: 2, owner: OWNER, dueAt: null, retriedBy: 'p', disprovedBy: 'probe', lockToken: 77 },
      ...{
        createdAt: new Date(at(123_457)),
        firstSentAt: new Date(at(1)),
        unknownSince: new Date(at(3)),
        keyLifetimeMs: 86_400_000,
      },
      ...{
        args: '{"n":1}',
        request: { method: 'POST' },
        sealed: Buffer.from('sealed'),
        undoState: 'none',
        settledAt: null,
      },
    });
    expect(await calls.read(ended)).toMatchObject({
      ...{
        state: 'succeeded',
        attempt: 3,
        answer: { status: 200 },
        evidence: 'late_answer',
        outcome: 'as succeeded',
        detail: 'why',
      },
      ...{
        problem: null,
        leaf: Buffer.alloc(32, 5),
        lockToken: 77,
        settledAt: new Date(at(4)),
        owner: null,
        dueAt: null,
      },
      ...{ undoState: 'due', undoArgs: '{}', undoTries: 1, ownerDeaths: 2, retriedBy: null },
    });
    expect(await calls.read(rejected)).toMatchObject({ state: 'rejected', problem: 'tool_failed', attempt: 0 });
  });

  it('keeps the former owners of open calls, and the order of their timelines', async () => {
    const owners = [randomUUID(), randomUUID()];
    const events = [
      { at: at(1), what: 'taken_over', attempt: 1, from: owners[0] },
      { at: at(2), what: 'in_doubt', attempt: 1 },
      { at: at(3), what: 'taken_over', attempt: 2, from: owners[1] },
    ];
    const open = await insertOldCall({ ...describeState('in_doubt'), events: json(events) }, { owner: OWNER });
    const ended = await insertOldCall({ ...describeState('failed'), events: json(events), contradiction: 'c' });
    for (const id of owners)
      await insertRow(database, 'processes', {
        id,
        host: 'h',
        pid: 1,
        pid_started: '1',
        lease_until: at(1),
        ended_at: at(2),
      });
    await migrateBefore(database, '0023');
    expect(await database.query('select txn, former_owners from open_calls')).toEqual([
      { txn: open, former_owners: owners },
    ]);
    expect((await readEvents([ended]))[ended]?.map(({ what }) => what)).toEqual([
      'taken_over',
      'in_doubt',
      'taken_over',
      'contradiction',
    ]);
    const db = await connect();
    expect(await areSendersGone(db, open)).toBe(true);
    await database.query('update processes set ended_at = null where id = $1', [owners[1]]);
    expect(await areSendersGone(db, open)).toBe(false);
  });

  it('moves deliveries to the slots of the newest repeats', async () => {
    const delivered = await insertOldCall({ ...describeState('succeeded'), identity: 'repeat', key: null });
    const waiting = await insertOldCall({ ...describeState('succeeded'), identity: 'repeat', delivered_at: null });
    const [slot, empty, gone] = [randomUUID(), randomUUID(), randomUUID()];
    await insertRow(database, 'repeats', { slot, generation: 3, txn: delivered });
    await insertRow(database, 'repeats', { slot: empty, generation: 1, txn: waiting });
    await insertRow(database, 'repeats', { slot: gone, generation: 2, txn: randomUUID() });
    await migrateBefore(database, '0023');
    const rows = await database.query<{ slot: string; generation: number; at: string | null }>(
      `select slot, generation, to_char(delivered_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at from repeats order by generation`,
    );
    expect(rows).toEqual([
      { slot: empty, generation: 1, at: null },
      { slot: gone, generation: 2, at: null },
      { slot, generation: 3, at: at(5) },
    ]);
    const db = await connect();
    expect(await findNewestRepeat(db, slot)).toMatchObject({ txn: delivered, call: { state: 'succeeded' } });
    expect(await findNewestRepeat(db, gone)).toMatchObject({ call: undefined, msSinceDelivered: null });
  });

  it('keeps the locks of open calls, which end with the call', async () => {
    const txn = await insertOldCall(describeState('sending'), { owner: OWNER, locked: true });
    const lock = { resource: 'card/1', holder: txn, of: 'call', mode: 'exclusive', token: 77, shown: 'card/1' };
    await insertRow(database, 'locks', { ...lock, txn, agent: 'a', tool: 't' });
    await migrateBefore(database, '0023');
    expect(await database.query('select resource from locks')).toEqual([{ resource: 'card/1' }]);
    await database.query('delete from open_calls where txn = $1', [txn]);
    expect(await database.query('select resource from locks')).toEqual([]);
  });

  it('moves more calls than a batch has, of the same moment, each once', async () => {
    await database.query(`with made as (
        insert into calls (txn, agent, tool, identity, fingerprint, kind, policy_version, state, attempt, evidence, settled_at, created_at, events)
        select gen_random_uuid(), 'a', 't', 'key', sha256(i::text::bytea), 'none', 'v', case when i % 2 = 0 then 'sending' else 'succeeded' end, 1,
          case when i % 2 = 1 then 'answer' end, case when i % 2 = 1 then now() end, '${at(9)}', '[{"what":"x"},{"what":"y"}]'
        from generate_series(1, 12000) i returning txn, settled_at
      ) insert into open_calls (txn, owner) select txn, '${OWNER}' from made where settled_at is null`);
    await migrateBefore(database, '0023');
    const [counts] =
      await database.query(`select (select count(*) from calls)::int as calls, (select count(*) from open_calls)::int as open,
      (select count(*) from settlements)::int as ended, (select count(*) from call_events)::int as events,
      (select count(*) from calls join open_calls using (txn))::int + (select count(*) from calls join settlements using (txn))::int as joined`);
    expect(counts).toEqual({ calls: 12_000, open: 6_000, ended: 6_000, events: 24_000, joined: 12_000 });
  });
});

const connect = () =>
  stopAfterTest(new Database(database.url, { max: 1, applicationName: 'test' }), (db) => db.close());

/** The timelines of calls, as the code reads them. */
async function readEvents(txns: readonly string[]): Promise<Readonly<Record<string, readonly CallEvent[]>>> {
  return Object.fromEntries(await readCallEvents(await connect(), txns));
}
