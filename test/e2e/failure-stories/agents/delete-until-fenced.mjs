/**
 * An agent that takes a run, and then deletes one object after another until a call is fenced.
 *
 * delete-until-fenced.mjs <gateway> <agent key> <run>
 */
import { createPost } from './post-json.mjs';

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
