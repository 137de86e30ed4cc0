import { describe, expect, it } from 'vitest';
import { createRandom } from '../support/random.ts';
import { useGateway } from '../support/use-gateway.ts';
import { crashRollback, createSevenStepSaga, FIRST_KILL_POINTS, LATER_KILL_POINTS } from './rollback-round.ts';
import { buildSagaPolicies } from './saga-policies.ts';

/** A selection; `tsx test/sagas/saga-campaign.ts` runs all kill points and all pairs. */
const SINGLE_KILL_POINTS = [
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
const PAIRS = { seed: 15, count: 3 };

const { upstream, gateway } = useGateway({ policies: buildSagaPolicies, start: false });

async function countDeaths(deaths: readonly string[]): Promise<number> {
  await gateway.ensureStarted();
  const sagaUnderTest = await createSevenStepSaga(gateway, upstream, deaths.join('-').replaceAll(':', '.'));
  const { violations, died } = await crashRollback(sagaUnderTest, upstream, deaths);
  expect(violations).toEqual([]);
  return died;
}

describe('a rollback finishes by itself although its gateway dies', () => {
  it.each(SINGLE_KILL_POINTS)('at %s', async (point) => {
    expect(await countDeaths([point])).toBe(1);
  });

  const random = createRandom(PAIRS.seed);
  const pick = <T>(items: readonly T[]) => items[Math.floor(random() * items.length)] as T;
  const sampled = Array.from(
    { length: PAIRS.count },
    () => [pick(FIRST_KILL_POINTS), pick(LATER_KILL_POINTS)] as const,
  );
  it.each([['answered', 'taken'] as const, ...sampled])('at %s and then again at %s', async (...deaths) => {
    expect(await countDeaths(deaths)).toBeGreaterThan(0);
  });
});
