/**
 * An agent that moves objects, one call each, and remembers nothing: not even its keys. What is done it learns from the history
 * of its run, after it has waited until nothing of its predecessors can still land.
 *
 * mover.mjs <gateway> <agent key> <run> <how many>
 */
import { randomUUID } from 'node:crypto';

const [gateway, agentKey, name, many] = process.argv.slice(2);

async function ask(method, path, body, headers = {}) {
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
    const page = (await ask('GET', `/v1/runs/${run}/calls?limit=50${cursor && `&cursor=${cursor}`}`)).body;
    for (const call of page.items) if (call.state === 'succeeded') done.add(call.args.id);
    cursor = page.cursor;
  }
  return done;
}

let { run, epoch, drained } = (await ask('POST', '/v1/runs?wait=20', { name })).body;
while (!drained) ({ drained } = (await ask('GET', `/v1/runs/${run}?wait=20`)).body);
const fence = { 'oncegate-run': run, 'oncegate-epoch': String(epoch) };
const done = await history(run);
process.stdout.write(`took ${epoch} with ${done.size} done\n`);
for (let n = 0; n < Number(many); n += 1) {
  const id = `object-${n}`;
  if (done.has(id)) continue;
  const moved = await ask('POST', '/v1/tools/world.keyed', { id }, { ...fence, 'idempotency-key': randomUUID() });
  if (moved.status !== 200) throw new Error(`${id}: ${moved.status} ${JSON.stringify(moved.body)}`);
  process.stdout.write(`moved ${n}\n`);
}
await ask('POST', `/v1/runs/${run}/finish`, {}, fence);
process.stdout.write('finished\n');
