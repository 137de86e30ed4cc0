import { type Arguments, parseArguments } from './arguments.ts';
import { helpOf, overview } from './help.ts';
import { Output } from './output.ts';
import { askAt } from './terminal.ts';
import { type Io, NotGood, UsageError, usageOf, type Verb } from './verb.ts';
import { approvalsVerb } from './verbs/approvals/approvals.ts';
import { approveVerb, rejectVerb } from './verbs/approvals/decide.ts';
import { auditAcceptVerb } from './verbs/audit/audit-accept.ts';
import { auditExportVerb } from './verbs/audit/audit-export.ts';
import { auditVerifyVerb } from './verbs/audit/audit-verify.ts';
import { witnessVerb } from './verbs/audit/witness.ts';
import { callVerb } from './verbs/calls/call.ts';
import { callsVerb } from './verbs/calls/calls.ts';
import { eraseVerb } from './verbs/calls/erase.ts';
import { resolveVerb } from './verbs/calls/resolve.ts';
import { agentsVerb } from './verbs/controls/agents.ts';
import { breakersVerb, breakerVerb } from './verbs/controls/breakers.ts';
import { freezeVerb, unfreezeVerb } from './verbs/controls/freeze.ts';
import { locksVerb } from './verbs/controls/locks.ts';
import { acceptVerb, pinsVerb } from './verbs/controls/pins.ts';
import { runsVerb } from './verbs/controls/runs.ts';
import { checkVerb } from './verbs/policies/check.ts';
import { explainVerb } from './verbs/policies/explain.ts';
import { reloadVerb } from './verbs/policies/reload.ts';
import { testVerb } from './verbs/policies/test.ts';
import { keyNewVerb } from './verbs/process/key-new.ts';
import { migrateVerb } from './verbs/process/migrate.ts';
import { openapiVerb } from './verbs/process/openapi.ts';
import { startVerb } from './verbs/process/start.ts';
import { versionVerb } from './verbs/process/version.ts';
import { closeVerb } from './verbs/sagas/close.ts';
import { resumeVerb } from './verbs/sagas/resume.ts';
import { rollbackVerb } from './verbs/sagas/rollback.ts';
import { sagaVerb } from './verbs/sagas/saga.ts';
import { sagasVerb } from './verbs/sagas/sagas.ts';
import { undoVerb } from './verbs/sagas/undo.ts';

/** Every verb, in the order in which help shows them. */
const VERBS: readonly Verb[] = [
  startVerb,
  migrateVerb,
  checkVerb,
  testVerb,
  explainVerb,
  keyNewVerb,
  callsVerb,
  callVerb,
  resolveVerb,
  undoVerb,
  sagasVerb,
  sagaVerb,
  rollbackVerb,
  resumeVerb,
  closeVerb,
  runsVerb,
  locksVerb,
  approvalsVerb,
  approveVerb,
  rejectVerb,
  agentsVerb,
  freezeVerb,
  unfreezeVerb,
  breakersVerb,
  breakerVerb,
  pinsVerb,
  acceptVerb,
  reloadVerb,
  auditExportVerb,
  auditVerifyVerb,
  auditAcceptVerb,
  eraseVerb,
  witnessVerb,
  openapiVerb,
  versionVerb,
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
