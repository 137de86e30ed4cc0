import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, expect, it } from 'vitest';
import { AGENT_KEY, OTHER_AGENT_KEY } from '../support/gateway.ts';
import { useClient } from '../support/use-ledger.ts';
import { useLinkedGateway } from './use-linked-gateway.ts';

const { upstream, database, link, gateway } = useLinkedGateway({ config: 'database: { pool: 4 }\n' });
const inTheWay = useClient(database);
beforeAll(() => gateway.admin('POST', '/admin/agents/tester/freeze', { reason: 'it floods' }));

/** What holds the ledger up, and how it ends. */
const TROUBLES: Record<string, { begin: () => Promise<unknown>; end: () => Promise<unknown> }> = {
  'does not answer': {
    begin: async () => link.stall(),
    end: async () => {
      link.cut();
      await link.pass();
    },
  },
  'is gone': { begin: () => link.refuse(), end: () => link.pass() },
  'has no connection left': {
    begin: async () => {
      await inTheWay.query('begin');
      await inTheWay.query('lock table approvals in access exclusive mode');
      // Each keeps a connection until it gives up, and there are always more.
      hogging = true;
      hogs = Array.from({ length: 40 }, async () => {
        while (hogging) await gateway.admin('GET', '/admin/approvals').catch(() => {});
      });
      await sleep(300);
    },
    end: async () => {
      hogging = false;
      await inTheWay.query('rollback');
      await Promise.all(hogs);
    },
  },
  'cannot write to the log': {
    begin: async () => {
      await inTheWay.query('begin');
      await inTheWay.query('lock table audit_queue in share mode');
    },
    end: () => inTheWay.query('rollback'),
  },
  'cannot read calls': {
    begin: async () => {
      await inTheWay.query('begin');
      await inTheWay.query('lock table calls in access exclusive mode');
    },
    end: () => inTheWay.query('rollback'),
  },
};
let hogging = false;
let hogs: Promise<void>[] = [];
let id = 0;

async function timed(tool: string, agentKey: string, keyed: boolean) {
  id += 1;
  const began = performance.now();
  const key = keyed ? { key: `trouble-${id}` } : {};
  const { body } = await gateway.call(tool, { id: `trouble-${id}` }, { agentKey, ...key });
  return { code: body.code, ms: performance.now() - began };
}

it.each(Object.entries(TROUBLES))(
  'refusals while the ledger %s are answered soon, and nothing is sent',
  async (_, { begin, end }) => {
    await gateway.waitUntilReady();
    await begin();
    const answers: ReturnType<typeof timed>[] = [];
    for (let i = 0; i < 40; i += 1) {
      answers.push(timed('world.none', AGENT_KEY, i % 4 < 2));
      answers.push(timed('world.put', OTHER_AGENT_KEY, i % 4 < 2));
      await sleep(40);
    }
    const all = await Promise.all(answers);
    await end();
    expect(new Set(all.map(({ code }) => code))).toEqual(new Set(['unavailable']));
    // Two seconds on a machine with nothing else to do; one after the other they would take a minute.
    expect(Math.max(...all.map(({ ms }) => ms))).toBeLessThan(15_000);
    expect(await upstream.requests()).toEqual([]);
  },
);
