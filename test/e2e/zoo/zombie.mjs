/**
 * An agent that takes a run, says so, and then deletes one object after the other, whatever it is told, until it is told no.
 *
 * zombie.mjs <gateway> <agent key> <run>
 */
import { createPost } from './post.mjs';

const [gateway, agentKey, name] = process.argv.slice(2);
const post = createPost(gateway, agentKey);

const { run, epoch } = (await post('/v1/runs', { name })).body;
const fence = { 'oncegate-run': run, 'oncegate-epoch': String(epoch) };
process.stdout.write(`took ${epoch}\n`);
for (let n = 0; ; n += 1) {
  const id = `${name}-${n}`;
  const answer = await post('/v1/tools/world.delete', { id }, { ...fence, 'idempotency-key': id });
  process.stdout.write(`${answer.status} ${answer.body.code ?? answer.body.state} ${n}\n`);
  if (answer.body.code === 'fenced') break;
}
