import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, expect, it } from 'vitest';
import { AGENT_KEY, OTHER_AGENT_KEY } from '../support/gateway.ts';
import { useClient } from '../support/use-ledger.ts';
import { useLinkedGateway } from './use-linked-gateway.ts';

const { upstream, database, link, gateway } = useLinkedGateway({ config: 'database: { pool: 4 }\n' });
const blocker = useClient(database);
beforeAll(() => gateway.admin('POST', '/admin/agents/tester/freeze', { reason: 'it floods' }));

/** Faults of the ledger: how each begins and how it ends. */
const LEDGER_FAULTS: Record<string, { begin: () => Promise<unknown>; end: () => Promise<unknown> }> = {
  'does not answer': {
    begin: async () => link.stall(),
    end: async () => {
      link.cut();
      await link.pass();
    },
  },
  'refuses connections': { begin: () => link.refuse(), end: () => link.pass() },
  'has no connection left': {
    begin: async () => {
      await blocker.query('begin');
      await blocker.query('lock table approvals in access exclusive mode');
      // Each request occupies a connection until it times out, and the loop sends the next one at once.
      shouldOccupy = true;
      occupants = Array.from({ length: 40 }, async () => {
        while (shouldOccupy) await gateway.admin('GET', '/admin/approvals').catch(() => {});
      });
      await sleep(300);
    },
    end: async () => {
      shouldOccupy = false;
      await blocker.query('rollback');
      await Promise.all(occupants);
    },
  },
  'cannot write to the audit log': {
    begin: async () => {
      await blocker.query('begin');
      await blocker.query('lock table audit_queue in share mode');
    },
    end: () => blocker.query('rollback'),
  },
  'cannot read calls': {
    begin: async () => {
      await blocker.query('begin');
      await blocker.query('lock table calls in access exclusive mode');
    },
    end: () => blocker.query('rollback'),
  },
};
let shouldOccupy = false;
let occupants: Promise<void>[] = [];
let lastId = 0;

async function timeCall(tool: string, agentKey: string, hasKey: boolean) {
  lastId += 1;
  const startedAt = performance.now();
  const key = hasKey ? { key: `refused-${lastId}` } : {};
  const { body } = await gateway.call(tool, { id: `refused-${lastId}` }, { agentKey, ...key });
  return { code: body.code, ms: performance.now() - startedAt };
}

it.each(Object.entries(LEDGER_FAULTS))(
  'refusals are answered soon and nothing is sent while the ledger %s',
  async (_, { begin, end }) => {
    await gateway.waitUntilReady();
    await begin();
    const answers: ReturnType<typeof timeCall>[] = [];
    for (let i = 0; i < 40; i += 1) {
      answers.push(timeCall('world.none', AGENT_KEY, i % 4 < 2));
      answers.push(timeCall('world.put', OTHER_AGENT_KEY, i % 4 < 2));
      await sleep(40);
    }
    const results = await Promise.all(answers);
    await end();
    expect(new Set(results.map(({ code }) => code))).toEqual(new Set(['unavailable']));
    // On an idle machine the slowest takes two seconds. If refusals waited for one another, they would take a minute.
    expect(Math.max(...results.map(({ ms }) => ms))).toBeLessThan(15_000);
    expect(await upstream.requests()).toEqual([]);
  },
);
