import { describe, expect, it } from 'vitest';
import { createRandom } from '../support/random.ts';
import { useGateway } from '../support/use-gateway.ts';
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

const { upstream, gateway } = useGateway({ policies: buildSagaPolicies, start: false });

async function round(deaths: readonly string[]): Promise<number> {
  await gateway.ensureStarted();
  const seven = await createSevenStepSaga(gateway, upstream, deaths.join('-').replaceAll(':', '.'));
  const { violations, died } = await crashRollback(seven, upstream, deaths);
  expect(violations).toEqual([]);
  return died;
}

describe('a rollback whose gateway is killed comes to rest by itself', () => {
  it.each(SINGLY)('at %s', async (point) => {
    expect(await round([point])).toBe(1);
  });

  const random = createRandom(PAIRS.seed);
  const pick = <T>(items: readonly T[]) => items[Math.floor(random() * items.length)] as T;
  const sampled = Array.from(
    { length: PAIRS.sampled },
    () => [pick(FIRST_KILL_POINTS), pick(LATER_KILL_POINTS)] as const,
  );
  it.each([['answered', 'taken'] as const, ...sampled])('at %s, and then again at %s', async (...deaths) => {
    expect(await round(deaths)).toBeGreaterThan(0);
  });
});
