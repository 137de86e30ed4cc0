import { type ParsedCommand, parseArguments } from './arguments.ts';
import { buildHelpVerb, formatOverview, wrapUsage } from './help.ts';
import { Output } from './output.ts';
import { buildPrompt } from './terminal.ts';
import { formatUsage, type Io, UsageError, type Verb, VerbError } from './verb.ts';
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
  buildHelpVerb(() => VERBS),
];

/** Runs one command and returns its exit code; never throws. Tests call it without a process. */
export async function runCommand(argv: readonly string[], io: Io): Promise<number> {
  if (argv.length === 0) {
    for (const line of formatOverview(VERBS)) io.stderr.write(`${line}\n`);
    return 2;
  }
  let parsed: ParsedCommand | undefined;
  try {
    parsed = await parseArguments(argv, VERBS);
    if ('fault' in parsed) throw new UsageError(parsed.fault);
    const { verb, operands, values } = parsed;
    const isJson = values['json'] === true;
    return await verb.run({
      io,
      out: new Output(io, isJson),
      isJson,
      operands,
      text: (option) => (typeof values[option] === 'string' ? values[option] : undefined),
      texts: (option) => (Array.isArray(values[option]) ? values[option] : []),
      hasFlag: (option) => values[option] === true,
    });
  } catch (error) {
    return reportError(error, parsed?.verb, argv.includes('--json'), io);
  }
}

/** Prints the error to standard error; with `--json` prints an error object to standard output as well. */
function reportError(error: unknown, verb: Verb | undefined, isJson: boolean, io: Io): number {
  const print = (code: string, message: string, members: object = {}): void => {
    if (isJson) new Output(io, true).printJson({ error: { code, message, ...members } });
    new Output(io, false).printNote(message);
  };
  if (error instanceof UsageError) {
    print('usage', `oncegate: ${error.message}\n${usageText(verb, io.isTty && !isJson)}`);
    return 2;
  }
  if (error instanceof VerbError) print(error.code, error.message, error.members);
  else
    print(
      'bug',
      `oncegate: this is a bug, please report it: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`,
    );
  return 1;
}

function usageText(verb: Verb | undefined, isTerminal: boolean): string {
  if (verb === undefined) return 'usage: oncegate <verb> [options]; "oncegate help" lists the verbs';
  return isTerminal ? wrapUsage(verb).join('\n') : `usage: ${formatUsage(verb)}`;
}

export async function main(): Promise<void> {
  for (const stream of [process.stdout, process.stderr]) {
    // `oncegate calls | head -1` closes the pipe early, which is no error.
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EPIPE') throw error;
    });
  }
  const { stdin, stdout, stderr, env } = process;
  process.exitCode = await runCommand(process.argv.slice(2), {
    stdout,
    stderr,
    stdin,
    env,
    cwd: process.cwd(),
    isTty: stdout.isTTY === true,
    onInterrupt: (listener) => {
      // A second Ctrl-C has its default effect and ends the process.
      process.once('SIGINT', listener);
      return () => process.off('SIGINT', listener);
    },
    // A prompt needs a terminal for the question and for the answer.
    ...(stdin.isTTY === true && stdout.isTTY === true ? { prompt: buildPrompt(stdin, stdout) } : {}),
  });
}
