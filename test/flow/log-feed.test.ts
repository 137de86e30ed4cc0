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

/** The real ledger, which remembers what it was asked. */
class CountingDatabase extends Database {
  readonly asked: string[] = [];

  override run<Row>(statement: Statement): Promise<readonly Row[]> {
    this.asked.push(statement.name);
    return super.run<Row>(statement);
  }
}

class Listener implements FeedSubscriber {
  readonly heard: LogEvent[] = [];
  isWelcome = () => true;
  ready = async () => {};

  take(events: readonly LogEvent[]): void {
    this.heard.push(...events);
  }

  /** Resolves when the entry at this place was told. */
  async reaches(index: number): Promise<void> {
    while (!this.heard.some(({ id }) => id === index)) await sleep(10);
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
  const switches = new ControlFlags(db, new Lease(db, () => {}), () => {});
  feed = new LogFeed({ db, log, adapters: new AdapterRegistry(() => false, Buffer.alloc(32)), switches });
});
afterEach(() => {
  for (const listener of listeners.splice(0)) feed.unsubscribe(listener);
});
afterAll(async () => {
  await db?.close();
  await database?.drop();
});

async function join(after?: number): Promise<Listener> {
  const listener = new Listener();
  listeners.push(listener);
  await feed.subscribe(listener, after);
  return listener;
}

/** Logs and seals entries; the place of the last one. */
async function happen(count = 1): Promise<number> {
  for (let i = 0; i < count; i += 1)
    await enqueueAuditEntry(db, buildAuditEntry('frozen', { scope: 'all', reason: 'secret' }));
  const sealed = await sealLeaves(db, async (_before, size) => `note ${size}\n`);
  return (sealed?.size ?? 0) - 1;
}

const looks = () => db.asked.filter((name) => name === 'read-log-head').length;

it('is read once for all who listen, and not at all for nobody', async () => {
  const one = await join();
  await one.reaches(await happen());
  const alone = db.asked.length;
  await one.reaches(await happen());
  const cost = db.asked.length - alone;
  const all = [one, ...(await Promise.all(Array.from({ length: 20 }, () => join())))];
  const many = db.asked.length;
  const place = await happen();
  await Promise.all(all.map((each) => each.reaches(place)));
  // A look more or less: it goes by the clock.
  expect(db.asked.length - many).toBeLessThanOrEqual(cost + 3);
  for (const listener of listeners.splice(0)) feed.unsubscribe(listener);
  const before = looks();
  // More than two of its intervals of 400 ms: nothing tells when nothing is read.
  await sleep(1_000);
  expect(looks()).toBe(before);
});

it('tells whoever is ahead of this process nothing twice', async () => {
  const here = await join();
  await here.reaches(await happen());
  const place = await happen(3);
  // Heard of it on another replica, before this one looked.
  const ahead = await join(place);
  await here.reaches(place);
  await ahead.reaches(await happen());
  expect(ahead.heard.flatMap(({ id }) => id ?? [])).toEqual([place + 1]);
});

it('leaves out what is too much, says so, and goes on from there', async () => {
  const listener = await join();
  const first = await happen();
  await listener.reaches(first);
  await database.query(`insert into audit_queue (entry) select '{"what":"x"}' from generate_series(1, $1::int)`, [
    MAX_LAG_ENTRIES + 1,
  ]);
  const place = await sealLeaves(db, async (_before, size) => `note ${size}\n`, MAX_LAG_ENTRIES + 1);
  while (!listener.heard.some(({ name }) => name === 'gap')) await sleep(10);
  expect(listener.heard.find(({ name }) => name === 'gap')?.data).toEqual({ from: first + 1, to: place?.size });
  const next = await happen();
  await listener.reaches(next);
  expect(listener.heard.filter(({ id, name }) => id !== null && id > first && name !== 'gap')).toHaveLength(1);
});

it('reads a few at a time of entries that are long', async () => {
  const listener = await join();
  await listener.reaches(await happen());
  const tails = () => db.asked.filter((name) => name === 'read-log-tail').length;
  const before = tails();
  const pad = `repeat('x', 3 * 1024 * 1024)`;
  await database.query(
    `insert into audit_queue (entry) select '{"pad":"' || ${pad} || '","what":"x"}' from generate_series(1, 5)`,
  );
  const place = (await sealLeaves(db, async (_before, size) => `note ${size}\n`))?.size ?? 0;
  await listener.reaches(place - 1);
  expect(listener.heard.flatMap(({ id }) => id ?? []).slice(-5)).toEqual([5, 4, 3, 2, 1].map((n) => place - n));
  expect(tails() - before).toBe(3);
});

it('tells no more of an entry than names, ids and times', async () => {
  const listener = await join();
  await listener.reaches(await happen());
  expect(JSON.stringify(listener.heard)).not.toContain('secret');
  expect(Object.keys(listener.heard[0]?.data ?? {})).toEqual(['what', 'at', 'scope']);
});
