/**
 * An agent that moves objects, one call each, and remembers nothing, not even its keys. It waits until no call of its
 * predecessors can still take effect, and then reads from the history of its run which objects are moved.
 *
 * move-objects.mjs <gateway> <agent key> <run> <how many>
 */
import { randomUUID } from 'node:crypto';

const [gateway, agentKey, name, count] = process.argv.slice(2);

async function request(method, path, body, headers = {}) {
  const response = await fetch(gateway + path, {
    method,
    headers: { authorization: `Bearer ${agentKey}`, 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: await response.json() };
}

async function history(run) {
  const done = new Set();
  for (let cursor = ''; cursor !== null; ) {
    const page = (await request('GET', `/v1/runs/${run}/calls?limit=50${cursor && `&cursor=${cursor}`}`)).body;
    for (const call of page.items) if (call.state === 'succeeded') done.add(call.args.id);
    cursor = page.cursor;
  }
  return done;
}

let { run, epoch, drained } = (await request('POST', '/v1/runs?wait=20', { name })).body;
while (!drained) ({ drained } = (await request('GET', `/v1/runs/${run}?wait=20`)).body);
const fence = { 'oncegate-run': run, 'oncegate-epoch': String(epoch) };
const done = await history(run);
process.stdout.write(`took ${epoch} with ${done.size} done\n`);
for (let n = 0; n < Number(count); n += 1) {
  const id = `object-${n}`;
  if (done.has(id)) continue;
  const moved = await request('POST', '/v1/tools/world.keyed', { id }, { ...fence, 'idempotency-key': randomUUID() });
  if (moved.status !== 200) throw new Error(`${id}: ${moved.status} ${JSON.stringify(moved.body)}`);
  process.stdout.write(`moved ${n}\n`);
}
await request('POST', `/v1/runs/${run}/finish`, {}, fence);
process.stdout.write('finished\n');
