import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startUpstream, type TestUpstream } from '../faults/upstream.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { type Gateway, makeGateway } from '../support/gateway.ts';
import { crashRollback, createSevenStepSaga, FIRST_KILL_POINTS, LATER_KILL_POINTS } from './rollback-round.ts';
import { buildSagaPolicies } from './saga-policies.ts';

/** All of them, and all pairs, are the campaign's: `tsx test/sagas/saga-campaign.ts`. */
const SINGLY = [
  'rolling_back',
  'marked',
  'marked:3',
  'undoing',
  'claimed',
  'sending',
  'sending:2',
  'answered',
  'settled',
  'finishing',
  'finished',
];
const PAIRS = { seed: 15, sampled: 3 };

let upstream: TestUpstream;
let database: TestDatabase;
let gateway: Gateway;

beforeAll(async () => {
  upstream = await startUpstream();
  database = await createTestDatabase();
  gateway = await makeGateway({ policies: buildSagaPolicies(upstream.url), databaseUrl: database.url });
});
afterAll(async () => {
  await gateway?.dispose();
  await database?.drop();
  await upstream?.stop();
});

async function round(deaths: readonly string[]): Promise<number> {
  if (!gateway.isAlive) await gateway.start();
  const seven = await createSevenStepSaga(gateway, upstream, deaths.join('-').replaceAll(':', '.'));
  const { violations, died } = await crashRollback(seven, upstream, deaths);
  expect(violations).toEqual([]);
  return died;
}

describe('a rollback whose gateway is killed comes to rest by itself', () => {
  it.each(SINGLY)('at %s', async (point) => {
    expect(await round([point])).toBe(1);
  });

  const random = generator(PAIRS.seed);
  const pick = <T>(items: readonly T[]) => items[Math.floor(random() * items.length)] as T;
  const sampled = Array.from(
    { length: PAIRS.sampled },
    () => [pick(FIRST_KILL_POINTS), pick(LATER_KILL_POINTS)] as const,
  );
  it.each([['answered', 'taken'] as const, ...sampled])('at %s, and then again at %s', async (...deaths) => {
    expect(await round(deaths)).toBeGreaterThan(0);
  });
});

/** A small seeded generator (mulberry32), so that a finding can be repeated. */
function generator(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
