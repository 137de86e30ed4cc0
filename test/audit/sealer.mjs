// A process that does nothing but seal the log, as every gateway does beside its other work: small enough to be killed often.
import { readFileSync } from 'node:fs';
import { CheckpointFiles } from '../../dist/adapters/checkpoint-files.js';
import { NoteKey } from '../../dist/gateway/domain/signed-note.js';
import { LogWatch } from '../../dist/gateway/flow/log-watch.js';
import { Sequencer } from '../../dist/gateway/flow/sequence.js';
import { Database } from '../../dist/gateway/ledger/db.js';
import { Lease } from '../../dist/gateway/ledger/processes.js';

const [url, origin, keyFile, directory, dieAt = '', pace = 'hurried'] = process.argv.slice(2);
const say = (line) => process.stdout.write(`${line}\n`);
const log = {
  info: () => {},
  warn: () => {},
  error: (fields, message) => say(`error ${message} ${JSON.stringify(fields)}`),
};
const db = new Database(url, { max: 3, applicationName: 'sealer' });
const lease = new Lease(db, () => {});
await lease.start();
const key = NoteKey.fromPem(origin, readFileSync(keyFile, 'utf8'));
const watch = new LogWatch({ db, lease, key, files: [new CheckpointFiles(directory)], witnesses: [], log });
// Not that it is still being compared, because a slow machine lost its lease.
const sayDoubt = () => {
  const doubt = watch.doubt();
  if (doubt?.includes('docs/audit.md')) say(`error doubt ${doubt}`);
};
await watch.look();
sayDoubt();
const reach = (point) => {
  if (point === dieAt) process.kill(process.pid, 'SIGKILL');
};
const sequencer = new Sequencer({ db, log, reach }, key, watch);
say('ready');
if (pace === 'usual') sequencer.start();
// Without the rests between looks: more happens before each death.
for (; pace === 'hurried'; ) {
  await sequencer.seal(0).catch((error) => say(`retry ${error.message}`));
  reach('sealed');
  await watch.look().catch((error) => say(`retry ${error.message}`));
  reach('anchored');
  sayDoubt();
}
