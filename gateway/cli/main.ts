import { agents } from './agents.ts';
import { approvals } from './approvals.ts';
import { type Arguments, parseArguments } from './arguments.ts';
import { auditAccept } from './audit-accept.ts';
import { auditExport } from './audit-export.ts';
import { auditVerify } from './audit-verify.ts';
import { breaker, breakers } from './breakers.ts';
import { call } from './call.ts';
import { calls } from './calls.ts';
import { check } from './check.ts';
import { close } from './close.ts';
import { approve, reject } from './decide.ts';
import { erase } from './erase.ts';
import { explain } from './explain.ts';
import { freeze, unfreeze } from './freeze.ts';
import { helpOf, overview } from './help.ts';
import { keyNew } from './key-new.ts';
import { locks } from './locks.ts';
import { migrate } from './migrate.ts';
import { openapi } from './openapi.ts';
import { Output } from './output.ts';
import { accept, pins } from './pins.ts';
import { reload } from './reload.ts';
import { resolve } from './resolve.ts';
import { resume } from './resume.ts';
import { rollback } from './rollback.ts';
import { runs } from './runs.ts';
import { saga } from './saga.ts';
import { sagas } from './sagas.ts';
import { start } from './start.ts';
import { askAt } from './terminal.ts';
import { test } from './test.ts';
import { undo } from './undo.ts';
import { type Io, NotGood, UsageError, usageOf, type Verb } from './verb.ts';
import { version } from './version.ts';
import { witness } from './witness.ts';

/** Every verb, in the order in which help shows them. */
const VERBS: readonly Verb[] = [
  start,
  migrate,
  check,
  test,
  explain,
  keyNew,
  calls,
  call,
  resolve,
  undo,
  sagas,
  saga,
  rollback,
  resume,
  close,
  runs,
  locks,
  approvals,
  approve,
  reject,
  agents,
  freeze,
  unfreeze,
  breakers,
  breaker,
  pins,
  accept,
  reload,
  auditExport,
  auditVerify,
  auditAccept,
  erase,
  witness,
  openapi,
  version,
  helpOf(() => VERBS),
];

/** The command line without a process around it: resolves with the exit code, never throws. */
export async function run(argv: readonly string[], io: Io): Promise<number> {
  if (argv.length === 0) {
    for (const line of overview(VERBS)) io.stderr.write(`${line}\n`);
    return 2;
  }
  let parsed: Arguments | undefined;
  try {
    parsed = await parseArguments(argv, VERBS);
    if ('fault' in parsed) throw new UsageError(parsed.fault);
    const { verb, operands, values } = parsed;
    const json = values['json'] === true;
    return await verb.run({
      io,
      out: new Output(io, json),
      json,
      operands,
      text: (option) => (typeof values[option] === 'string' ? values[option] : undefined),
      texts: (option) => (Array.isArray(values[option]) ? values[option] : []),
      flag: (option) => values[option] === true,
    });
  } catch (error) {
    return fail(error, parsed?.verb, argv.includes('--json'), io);
  }
}

/** Sentences to standard error; with `--json` also an error object where the answer would have been. */
function fail(error: unknown, verb: Verb | undefined, json: boolean, io: Io): number {
  const tell = (code: string, message: string, members: object = {}): void => {
    if (json) new Output(io, true).json({ error: { code, message, ...members } });
    new Output(io, false).note(message);
  };
  if (error instanceof UsageError) {
    const usage = verb === undefined ? 'oncegate <verb> [options]; "oncegate help" lists the verbs' : usageOf(verb);
    tell('usage', `oncegate: ${error.message}\nusage: ${usage}`);
    return 2;
  }
  if (error instanceof NotGood) tell(error.code, error.message, error.members);
  else
    tell('bug', `oncegate: this is a bug: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
  return 1;
}

export async function main(): Promise<void> {
  for (const stream of [process.stdout, process.stderr]) {
    // `oncegate calls | head -1` closes the pipe early: nothing is wrong, there is only nobody left to tell.
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EPIPE') throw error;
    });
  }
  const { stdin, stdout, stderr, env } = process;
  process.exitCode = await run(process.argv.slice(2), {
    stdout,
    stderr,
    stdin,
    env,
    cwd: process.cwd(),
    isTty: stdout.isTTY === true,
    onInterrupt: (told) => {
      // Once: whoever presses it again means it.
      process.once('SIGINT', told);
      return () => process.off('SIGINT', told);
    },
    // Whoever is asked must see the question and be able to answer it.
    ...(stdin.isTTY === true && stdout.isTTY === true ? { ask: askAt(stdin, stdout) } : {}),
  });
}
