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
const die = (at: string) => ({ ONCEGATE_DIE_AT: at });

async function round(name: string, kind: OnceKind, deaths: string[], plans?: PlannedCall['plans']): Promise<void> {
  const calls = [{ id: `${kind}-${name}`, kind, ...(plans === undefined ? {} : { plans }) }];
  const { violations } = await runCrashRound({ gateway, upstream, calls, deaths: deaths.map(die) });
  expect(violations).toEqual([]);
  await gateway.kill();
}

describe('kill -9 at a named point', () => {
  for (const kind of KINDS) {
    for (const point of ['claiming', 'claimed', 'sending', 'answered', 'settled', 'replying']) {
      it(`${point}, ${kind}`, () => round(point, kind, [point]));
    }
  }
  it.each(['parking', 'parked', 'probed'])('%s, probe whose answer was lost', (point) =>
    round(`lost-${point}`, 'probe', [point], LOST_ANSWER),
  );
  it.each(['parking', 'parked', 'probed', 'sending:2', 'answered:2'])('%s, probe that never arrived', (point) =>
    round(`gone-${point}`, 'probe', [point], NEVER_ARRIVED),
  );
  it.each(['parking', 'parked'])('%s, none whose answer was lost', (point) =>
    round(`lost-${point}`, 'none', [point], LOST_ANSWER),
  );
  it.each(['answered', 'sending:2', 'answered:2'])('%s, key whose answer was lost', (point) =>
    round(`lost-${point}`, 'key', [point], LOST_ANSWER),
  );
});

describe('kill -9 again in recovery', () => {
  for (const kind of ['key', 'idempotent', 'probe', 'none'] as const) {
    it(`taken, ${kind}`, () => round('again-taken', kind, ['answered', 'taken']));
    it(`taken twice, then on the way, ${kind}`, () =>
      round('again-way', kind, [
        'sending',
        'taken',
        'taken',
        kind === 'none' || kind === 'probe' ? 'parking' : 'answered',
      ]));
  }
  it('probed, probe', () => round('again-probed', 'probe', ['answered', 'probed', 'probed']));
});

describe('kill -9 from outside', () => {
  it.each(KINDS)('with many in flight, before and after their effects: %s', async (kind) => {
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
