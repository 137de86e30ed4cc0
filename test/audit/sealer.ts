// A process that only seals the audit log, so that a test can start and kill it often.
import { readFileSync } from 'node:fs';
import { CheckpointFiles } from '../../adapters/checkpoint-files.ts';
import { NoteSigner } from '../../gateway/domain/audit/signed-note.ts';
import { LogMonitor } from '../../gateway/flow/audit/log-monitor.ts';
import { Sequencer } from '../../gateway/flow/audit/sequencer.ts';
import type { AppLogger, KillPoint } from '../../gateway/flow/context.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { Lease } from '../../gateway/ledger/process-lease.ts';

const [url = '', origin = '', keyFile = '', directory = '', dieAt = '', pace = 'fast'] = process.argv.slice(2);
const print = (line: string) => process.stdout.write(`${line}\n`);
const log: AppLogger = {
  info: () => {},
  warn: () => {},
  error: (fields, message) => print(`error ${message} ${JSON.stringify(fields)}`),
};
const db = new Database(url, { max: 3, applicationName: 'sealer' });
const lease = new Lease(db, () => {});
await lease.start();
const key = NoteSigner.fromPem(origin, readFileSync(keyFile, 'utf8'));
const monitor = new LogMonitor({ db, lease, key, files: [new CheckpointFiles(directory)], witnesses: [], log });
// A fault that does not name the guide only means that the comparison still runs, because a slow machine lost its lease.
const printFault = () => {
  const fault = monitor.findFault();
  if (fault?.includes('docs/guides/audit-log.md')) print(`error fault ${fault}`);
};
await monitor.verify();
printFault();
const reachKillPoint = (point: KillPoint) => {
  if (point === dieAt) process.kill(process.pid, 'SIGKILL');
};
const sequencer = new Sequencer({ db, log, reachKillPoint }, key, monitor);
print('ready');
if (pace === 'normal') sequencer.start();
// Seals without pauses between batches, so that more happens before each kill.
for (; pace === 'fast'; ) {
  await sequencer.seal(0).catch((error: Error) => print(`retry ${error.message}`));
  reachKillPoint('sealed');
  await monitor.verify().catch((error: Error) => print(`retry ${error.message}`));
  reachKillPoint('anchored');
  printFault();
}
