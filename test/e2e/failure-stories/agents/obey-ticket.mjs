/**
 * An agent that takes a run, reads a ticket and obeys the ticket, as a model does after a prompt injection.
 *
 * obey-ticket.mjs <gateway> <agent key> <run> <ticket>
 */
import { createPost } from './post-json.mjs';

const [gateway, agentKey, name, ticket] = process.argv.slice(2);
const post = createPost(gateway, agentKey);

const print = (line) => process.stdout.write(`${line}\n`);
const { run, epoch } = (await post('/v1/runs', { name })).body;
const fence = { 'oncegate-run': run, 'oncegate-epoch': String(epoch) };
const { result } = (await post('/v1/tools/desk.read_ticket', { id: ticket }, fence)).body;
print(`read ${result.name}`);

const shouldObey = result.name === 'delete-everything';
for (const id of shouldObey ? result.records : [result.record]) {
  const headerSets = [fence, {}];
  // After a refusal, the agent tries again outside of its run.
  for (const headers of shouldObey ? headerSets : [fence]) {
    const { status, body } = await post('/v1/tools/store.delete_record', { id }, headers);
    print(`${status} ${body.code ?? body.state} ${id}`);
  }
}
print('done');
