import { describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { useGateway } from '../support/use-gateway.ts';
import { type OnceKind, type PlannedCall, runCrashRound } from './crash-round.ts';

const { upstream, gateway } = useGateway({
  start: false,
  policies: (url) => buildFaultPolicies(url, { timeout: '1s' }),
});

const KINDS: readonly OnceKind[] = ['key', 'idempotent', 'probe', 'none', 'read'];
const LOST_ANSWER: PlannedCall['plans'] = [{ do: ['apply', 'drop'] }];
const NEVER_ARRIVED: PlannedCall['plans'] = [{ do: ['drop'] }];
const buildDeathEnv = (killPoint: string) => ({ ONCEGATE_DIE_AT: killPoint });

async function expectNoViolations(
  name: string,
  kind: OnceKind,
  deaths: string[],
  plans?: PlannedCall['plans'],
): Promise<void> {
  const calls = [{ id: `${kind}-${name}`, kind, ...(plans === undefined ? {} : { plans }) }];
  const { violations } = await runCrashRound({ gateway, upstream, calls, deaths: deaths.map(buildDeathEnv) });
  expect(violations).toEqual([]);
  await gateway.kill();
}

describe('a gateway that dies at a kill point', () => {
  for (const kind of KINDS) {
    for (const point of ['claiming', 'claimed', 'sending', 'answered', 'settled', 'replying']) {
      it(`keeps its promises at ${point} with a ${kind} call`, () => expectNoViolations(point, kind, [point]));
    }
  }
  it.each(['parking', 'parked', 'probed'])(
    'keeps its promises at %s with a probe call whose answer was lost',
    (point) => expectNoViolations(`lost-${point}`, 'probe', [point], LOST_ANSWER),
  );
  it.each(['parking', 'parked', 'probed', 'sending:2', 'answered:2'])(
    'keeps its promises at %s with a probe call that never arrived',
    (point) => expectNoViolations(`gone-${point}`, 'probe', [point], NEVER_ARRIVED),
  );
  it.each(['parking', 'parked'])('keeps its promises at %s with a none call whose answer was lost', (point) =>
    expectNoViolations(`lost-${point}`, 'none', [point], LOST_ANSWER),
  );
  it.each(['answered', 'sending:2', 'answered:2'])(
    'keeps its promises at %s with a key call whose answer was lost',
    (point) => expectNoViolations(`lost-${point}`, 'key', [point], LOST_ANSWER),
  );
});

describe('a gateway that dies again during recovery', () => {
  for (const kind of ['key', 'idempotent', 'probe', 'none'] as const) {
    it(`keeps its promises at taken with a ${kind} call`, () =>
      expectNoViolations('again-taken', kind, ['answered', 'taken']));
    it(`keeps its promises at taken twice and then during the attempt of a ${kind} call`, () =>
      expectNoViolations('again-way', kind, [
        'sending',
        'taken',
        'taken',
        kind === 'none' || kind === 'probe' ? 'parking' : 'answered',
      ]));
  }
  it('keeps its promises at probed with a probe call', () =>
    expectNoViolations('again-probed', 'probe', ['answered', 'probed', 'probed']));
});

describe('a gateway that another process kills', () => {
  it.each(KINDS)('keeps its promises with many %s calls in flight, before and after their effects', async (kind) => {
    const plans: NonNullable<PlannedCall['plans']>[] = [
      [{ do: [{ delay: 150 }] }],
      [{ do: ['apply', { delay: 150 }] }],
    ];
    const calls = Array.from(
      { length: 40 },
      (_, i): PlannedCall => ({ id: `many-${kind}-${i}`, kind, plans: plans[i % 2] ?? [] }),
    );
    const { violations, killedInFlight } = await runCrashRound({
      gateway,
      upstream,
      calls,
      deaths: [{}],
      killAfterMs: 100,
    });
    expect(violations).toEqual([]);
    expect(killedInFlight).toBeGreaterThan(20);
    await gateway.kill();
  });
});
