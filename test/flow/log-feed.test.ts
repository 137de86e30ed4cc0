import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { AdapterRegistry } from '../../adapters/registry.ts';
import { buildAuditEntry } from '../../gateway/domain/audit/audit.ts';
import type { LogEvent } from '../../gateway/domain/audit/log-event.ts';
import { type FeedSubscriber, LogFeed, MAX_LAG_ENTRIES } from '../../gateway/flow/audit/log-feed.ts';
import { sealLeaves } from '../../gateway/ledger/audit/audit-log.ts';
import { enqueueAuditEntry } from '../../gateway/ledger/audit/audit-queue.ts';
import { ControlFlags } from '../../gateway/ledger/controls/control-flags.ts';
import { Database, type Statement } from '../../gateway/ledger/db.ts';
import { Lease } from '../../gateway/ledger/process-lease.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';

/** The real ledger, which records the names of its statements. */
class CountingDatabase extends Database {
  readonly statements: string[] = [];

  override run<Row>(statement: Statement): Promise<readonly Row[]> {
    this.statements.push(statement.name);
    return super.run<Row>(statement);
  }
}

class Listener implements FeedSubscriber {
  readonly received: LogEvent[] = [];
  isAuthorized = () => true;
  ready = async () => {};

  take(events: readonly LogEvent[]): void {
    this.received.push(...events);
  }

  /** Resolves when the entry with this index was received. */
  async reaches(index: number): Promise<void> {
    while (!this.received.some(({ id }) => id === index)) await sleep(10);
  }
}

let database: TestDatabase;
let db: CountingDatabase;
let feed: LogFeed;
const listeners: Listener[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  db = new CountingDatabase(database.url, { max: 4, applicationName: 'test' });
  const log = { info: () => {}, warn: () => {}, error: () => {} };
  const controlFlags = new ControlFlags(db, new Lease(db, () => {}), () => {});
  feed = new LogFeed({ db, log, adapters: new AdapterRegistry(() => false, Buffer.alloc(32)), controlFlags });
});
afterEach(() => {
  for (const listener of listeners.splice(0)) feed.unsubscribe(listener);
});
afterAll(async () => {
  await db?.close();
  await database?.drop();
});

async function subscribe(after?: number): Promise<Listener> {
  const listener = new Listener();
  listeners.push(listener);
  await feed.subscribe(listener, after);
  return listener;
}

/** Logs and seals entries. Returns the index of the last one. */
async function sealEntries(count = 1): Promise<number> {
  for (let i = 0; i < count; i += 1)
    await enqueueAuditEntry(db, buildAuditEntry('frozen', { scope: 'all', reason: 'secret' }));
  const sealed = await sealLeaves(db, async (_before, size) => `note ${size}\n`);
  return (sealed?.size ?? 0) - 1;
}

const countPolls = () => db.statements.filter((name) => name === 'read-log-head').length;

it('the log is read once for all listeners, and not at all without listeners', async () => {
  const one = await subscribe();
  await one.reaches(await sealEntries());
  const alone = db.statements.length;
  await one.reaches(await sealEntries());
  const cost = db.statements.length - alone;
  const all = [one, ...(await Promise.all(Array.from({ length: 20 }, () => subscribe())))];
  const many = db.statements.length;
  const index = await sealEntries();
  await Promise.all(all.map((each) => each.reaches(index)));
  // The poller runs by the clock, so a few more statements are possible.
  expect(db.statements.length - many).toBeLessThanOrEqual(cost + 3);
  for (const listener of listeners.splice(0)) feed.unsubscribe(listener);
  const before = countPolls();
  // More than two poll intervals of 400 ms: no event says that nothing is read.
  await sleep(1_000);
  expect(countPolls()).toBe(before);
});

it('a listener that is ahead of this process gets no entry twice', async () => {
  const here = await subscribe();
  await here.reaches(await sealEntries());
  const index = await sealEntries(3);
  // This listener got the entries from another replica, before this one polled.
  const ahead = await subscribe(index);
  await here.reaches(index);
  await ahead.reaches(await sealEntries());
  expect(ahead.received.flatMap(({ id }) => id ?? [])).toEqual([index + 1]);
});

it('a listener that is too far behind gets a gap event and continues after it', async () => {
  const listener = await subscribe();
  const first = await sealEntries();
  await listener.reaches(first);
  await database.query(`insert into audit_queue (entry) select '{"what":"x"}' from generate_series(1, $1::int)`, [
    MAX_LAG_ENTRIES + 1,
  ]);
  const sealed = await sealLeaves(db, async (_before, size) => `note ${size}\n`, MAX_LAG_ENTRIES + 1);
  while (!listener.received.some(({ name }) => name === 'gap')) await sleep(10);
  expect(listener.received.find(({ name }) => name === 'gap')?.data).toEqual({ from: first + 1, to: sealed?.size });
  const next = await sealEntries();
  await listener.reaches(next);
  expect(listener.received.filter(({ id, name }) => id !== null && id > first && name !== 'gap')).toHaveLength(1);
});

it('long entries are read in small batches', async () => {
  const listener = await subscribe();
  await listener.reaches(await sealEntries());
  const tails = () => db.statements.filter((name) => name === 'read-log-tail').length;
  const before = tails();
  const pad = `repeat('x', 3 * 1024 * 1024)`;
  await database.query(
    `insert into audit_queue (entry) select '{"pad":"' || ${pad} || '","what":"x"}' from generate_series(1, 5)`,
  );
  const size = (await sealLeaves(db, async (_before, entries) => `note ${entries}\n`))?.size ?? 0;
  await listener.reaches(size - 1);
  expect(listener.received.flatMap(({ id }) => id ?? []).slice(-5)).toEqual([5, 4, 3, 2, 1].map((n) => size - n));
  expect(tails() - before).toBe(3);
});

it('a listener gets only names, ids and times of an entry', async () => {
  const listener = await subscribe();
  await listener.reaches(await sealEntries());
  expect(JSON.stringify(listener.received)).not.toContain('secret');
  expect(Object.keys(listener.received[0]?.data ?? {})).toEqual(['what', 'at', 'scope']);
});
