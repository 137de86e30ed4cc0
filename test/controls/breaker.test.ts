import { setTimeout as sleep } from 'node:timers/promises';
import { beforeEach, expect, it } from 'vitest';
import { ADMIN_KEY, AGENT_KEY, keysYaml } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

function policies(url: string): Record<string, string> {
  const input = 'input: { type: object, properties: { id: { type: string } }, required: [id] }';
  const retry = 'retry: { attempts: 1, base: 1ms, max: 1ms, within: 1h }';
  const probe = `{ tool: world.find, args: { id: "\${args.id}" }, applied: "result.found" }`;
  return {
    'breaker.yaml': `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 1s, concurrency: 2, breaker: { threshold: 50%, minimum: 4, window: 10s, cooldown: 1s } }
tools:
  world.pay: { upstream: world, ${input}, request: { method: POST, path: /keyed/charge, body: "\${args}" }, once: { by: key, header: Idempotency-Key }, ${retry} }
  world.mail: { upstream: world, ${input}, request: { method: POST, path: /none/mail, body: "\${args}" }, ${retry} }
  world.order: { upstream: world, ${input}, request: { method: POST, path: /probed/orders, body: "\${args}" }, once: { by: probe, probe: ${probe}, settles: 100ms }, ${retry} }
  world.find: { upstream: world, effect: read, ${input}, request: { method: GET, path: /probed/orders, query: { id: "\${args.id}" } }, ${retry} }
  world.read: { upstream: world, effect: read, ${input}, request: { method: GET, path: "/read/items/\${args.id}" }, ${retry} }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules: [{ allow: world.*, approve: never }]
people:
  root: { ${keysYaml(ADMIN_KEY)}, roles: [admin] }
`,
  };
}

let id = '';

const { upstream, gateway } = useGateway({ policies });
beforeEach(async () => {
  id = uniqueId('case');
  await upstream.reset();
  await setBreaker('close');
});

const call = (tool: string, name: string) => gateway.call(`world.${tool}`, { id: name }, { key: name });
const setBreaker = (to: 'open' | 'close') => gateway.admin('POST', `/admin/breakers/world/${to}`, { reason: to });
const readBreaker = async () => (await gateway.admin('GET', '/admin/breakers')).body.items[0];
const openByFailures = async () => {
  await upstream.plan({ match: { path: '/read/items/*' }, do: [{ reply: 500 }], times: 5 });
  for (let i = 0; (await readBreaker()).state === 'closed' && i < 6; i += 1) await call('read', `${id}-sick-${i}`);
  expect((await readBreaker()).state).toBe('open');
};

it('a breaker does not open because agents send bad requests', async () => {
  await upstream.plan({ match: { path: '/keyed/charge' }, do: [{ reply: 422 }], times: 10 });
  await upstream.plan({ match: { path: '/read/items/*' }, do: [{ reply: 404 }], times: 10 });
  for (let i = 0; i < 10; i += 1) {
    expect((await call('pay', `${id}-${i}`)).status).toBe(502);
    expect((await call('read', `${id}-r${i}`)).status).toBe(502);
  }
  expect(await readBreaker()).toMatchObject({ state: 'closed', by: 'auto' });
});

it('a breaker that opens or closes changes neither calls in flight nor calls in doubt', async () => {
  await upstream.plan({ match: { id: `${id}-slow` }, do: [{ event: 'slow' }, { wait: 'go' }, 'apply'] });
  await upstream.plan({ match: { id: `${id}-lost` }, do: ['apply', 'drop'] });
  const slow = call('pay', `${id}-slow`);
  await upstream.awaitEvent('slow');
  expect((await call('mail', `${id}-lost`)).status).toBe(504);
  await openByFailures();
  await upstream.release('go');
  expect((await slow).status).toBe(200);
  expect((await call('mail', `${id}-lost`)).body.code).toBe('in_doubt');
  // A call that an open breaker refuses does not bind its key.
  const refused = await call('pay', `${id}-new`);
  expect(refused.body).toMatchObject({ status: 503, code: 'breaker_open', retry: 'after_delay' });
  expect(refused.body.detail).toBe(
    'The circuit breaker of world is open because the upstream fails too often. Nothing was sent.',
  );
  expect(await upstream.requests(`${id}-new`)).toEqual([]);
  await setBreaker('close');
  expect((await call('mail', `${id}-lost`)).body.code).toBe('in_doubt');
  expect((await call('pay', `${id}-new`)).body).toMatchObject({ replayed: false, state: 'succeeded' });
  expect(await upstream.effects(`${id}-lost`)).toHaveLength(1);
});

it('a half-open breaker lets one call through, and never a write that cannot be repeated', async () => {
  await openByFailures();
  await expect.poll(() => readBreaker().then(({ state }) => state), { timeout: 5_000, interval: 20 }).toBe('half_open');
  const writes = await Promise.all([call('mail', `${id}-m`), call('order', `${id}-o`)]);
  expect(writes.map(({ status, body }) => [status, body.code])).toEqual(Array(2).fill([503, 'breaker_open']));
  await upstream.plan({ match: { path: '/keyed/charge' }, do: [{ event: 'trial' }, { wait: 'go' }, 'apply'] });
  const trial = call('pay', `${id}-trial`);
  await upstream.awaitEvent('trial');
  const others = await Promise.all(Array.from({ length: 6 }, (_, i) => call('pay', `${id}-${i}`)));
  expect(others.map(({ body }) => body.code)).toEqual(Array(6).fill('breaker_open'));
  await upstream.release('go');
  expect((await trial).status).toBe(200);
  expect((await upstream.requests()).filter(({ route }) => route === 'POST /keyed/charge')).toHaveLength(1);
  expect((await readBreaker()).state).toBe('closed');
});

it('a breaker that a person opened is closed neither by time nor by a success', async () => {
  await upstream.plan({ match: { id: `${id}-slow` }, do: [{ event: 'slow' }, { wait: 'go' }, 'apply'] });
  const slow = call('pay', `${id}-slow`);
  await upstream.awaitEvent('slow');
  expect((await setBreaker('open')).body).toMatchObject({ state: 'open', by: 'root' });
  await upstream.release('go');
  expect((await slow).status).toBe(200);
  // Sleeps longer than the cooldown of one second, because no event says that a breaker stays open.
  await sleep(1_300);
  const refused = await call('read', id);
  expect(refused.body).toMatchObject({ code: 'breaker_open', detail: 'root opened the breaker of world: open' });
  expect(refused.headers.get('retry-after')).toBe('5');
  expect(await readBreaker()).toMatchObject({ state: 'open', by: 'root' });
  await gateway.restart();
  expect((await call('read', id)).body.code).toBe('breaker_open');
  expect((await setBreaker('close')).body).toMatchObject({ state: 'closed', by: 'auto' });
  expect((await call('read', id)).status).toBe(200);
});

it.each(['mail', 'order', 'pay', 'read'])(
  'an upstream gets at most `concurrency` requests at once: %s',
  async (tool) => {
    await upstream.plan({ match: {}, do: [{ delay: 40 }, 'apply'], times: 'always' });
    let maxConcurrent = 0;
    let isDone = false;
    const watch = (async () => {
      while (!isDone) {
        maxConcurrent = Math.max(maxConcurrent, (await upstream.connections()).concurrent);
        await sleep(5);
      }
    })();
    // Few enough that even a slow machine sends the last one within the timeout of one second.
    const answers = await Promise.all(Array.from({ length: 8 }, (_, i) => call(tool, `${id}-${i}`)));
    isDone = true;
    await watch;
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
    expect(maxConcurrent).toBeLessThanOrEqual(2);
    expect(maxConcurrent).toBeGreaterThan(0);
  },
);

it('a full queue refuses calls at once and binds no key', async () => {
  await upstream.plan({ match: { path: '/none/mail' }, do: [{ delay: 30 }, 'apply'], times: 'always' });
  const ids = Array.from({ length: 60 }, (_, i) => `${id}-${i}`);
  const answers = await Promise.all(ids.map((name) => call('mail', name)));
  const refused = ids.filter((_, i) => answers[i]?.status === 503);
  expect(answers.filter(({ status }) => status === 200).length + refused.length).toBe(60);
  expect(refused.length).toBeGreaterThan(0);
  for (const name of refused) expect(await upstream.requests(name)).toEqual([]);
  expect((await readBreaker()).state).toBe('closed');
  const [again] = refused;
  expect((await call('mail', again ?? '')).body).toMatchObject({ replayed: false, state: 'succeeded' });
});
