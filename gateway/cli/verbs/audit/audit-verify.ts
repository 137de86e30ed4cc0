import { type FileHandle, open, readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import {
  type ExportFault,
  type ExportVerification,
  ExportVerifier,
  parseLastLine,
  type TrustedInputs,
} from '../../../domain/audit/audit-export.ts';
import { type Output, paint } from '../../output.ts';
import { spoolToFile } from '../../spool-to-file.ts';
import { type Invocation, type Io, type Verb, VerbError } from '../../verb.ts';

const CHUNK_BYTES = 1024 * 1024;
/** More than the last line needs: it holds a checkpoint and a key. */
const MAX_LAST_LINE_BYTES = 64 * 1024;
const PROGRESS_BAR_WIDTH = 30;

export const auditVerifyVerb: Verb = {
  name: 'audit verify',
  summary: 'verify an exported audit log, without network or database',
  operands: [{ name: 'file', help: 'an export; - reads standard input' }],
  options: {
    checkpoint: { value: 'FILE', help: 'a checkpoint that you kept; the export must contain its entries' },
    key: { value: 'FILE', help: 'the public key that you kept; the export must be signed with it' },
  },
  run: async (invocation) => {
    const { io, out, operands } = invocation;
    const trusted = await readTrustedInputs(invocation);
    const file = await openExport(io, operands[0] ?? '');
    const started = performance.now();
    const verification = await verify(file, trusted, buildProgressBar(io, out)).finally(() => file.handle.close());
    const seconds = (performance.now() - started) / 1_000;
    out.printJson({ good: verification.isGood, ...toJson(verification), fault: verification.fault });
    printVerification(out, verification, trusted, seconds);
    return verification.isGood ? 0 : 1;
  },
};

function toJson({ entries, proved, publicKey }: ExportVerification) {
  return { entries, proved, publicKey };
}

async function readTrustedInputs({ io, text }: Invocation): Promise<TrustedInputs> {
  const read = async (option: string) => {
    const name = text(option);
    return name === undefined ? undefined : readTextFile(resolve(io.cwd, name));
  };
  return { key: (await read('key'))?.trim(), checkpoint: await read('checkpoint') };
}

async function readTextFile(file: string): Promise<string> {
  return readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw buildReadError(file, error);
  });
}

function buildReadError(file: string, { code, message }: NodeJS.ErrnoException): VerbError {
  return new VerbError('unreadable', `${file} cannot be read: ${code ?? message}.`);
}

type Progress = (share: number) => void;

interface OpenExport {
  readonly name: string;
  readonly handle: FileHandle;
}

/** An export is read twice, its last line first. A pipe can be read only once, so it is copied to a file. */
async function openExport(io: Io, operand: string): Promise<OpenExport> {
  if (operand === '-') return spoolExport('standard input', io.stdin);
  const name = resolve(io.cwd, operand);
  const handle = await open(name, 'r').catch((error: NodeJS.ErrnoException) => {
    throw buildReadError(name, error);
  });
  if ((await handle.stat()).isFile()) return { name, handle };
  try {
    return await spoolExport(name, handle.createReadStream({ autoClose: false, highWaterMark: CHUNK_BYTES }));
  } finally {
    await handle.close();
  }
}

async function spoolExport(name: string, source: Io['stdin']): Promise<OpenExport> {
  const handle = await spoolToFile(source, (error) => buildReadError(name, error));
  return { name, handle };
}

async function verify(
  { name, handle }: OpenExport,
  trusted: TrustedInputs,
  progress: Progress,
): Promise<ExportVerification> {
  try {
    const { size, publicKey } = await readLastLine(handle);
    const verifier = new ExportVerifier(publicKey, trusted);
    const chunks = handle.createReadStream({ start: 0, autoClose: false, highWaterMark: CHUNK_BYTES });
    let read = 0;
    for await (const chunk of chunks as AsyncIterable<Buffer>) {
      verifier.feed(chunk);
      if (verifier.hasFault) break;
      read += chunk.length;
      progress(read / size);
    }
    return verifier.finish();
  } catch (error) {
    throw buildReadError(name, error as NodeJS.ErrnoException);
  } finally {
    progress(1);
  }
}

/** Reads the last line first, because its public key is needed to verify the first entry. */
async function readLastLine(handle: FileHandle): Promise<{ size: number; publicKey: string | undefined }> {
  const { size } = await handle.stat();
  const tail = Buffer.alloc(Math.min(size, MAX_LAST_LINE_BYTES));
  await handle.read(tail, 0, tail.length, size - tail.length);
  const line = tail.toString('utf8').trimEnd().split('\n').at(-1) ?? '';
  return { size, publicKey: parseLastLine(line)?.publicKey };
}

/** Draws a progress bar on a terminal, and nothing elsewhere. */
function buildProgressBar(io: Io, out: Output): Progress {
  if (!out.isTerminal) return () => {};
  let last = -1;
  return (share) => {
    const full = Math.round(Math.min(1, share) * PROGRESS_BAR_WIDTH);
    if (full === last) return;
    last = full;
    const bar = `${'#'.repeat(full)}${'.'.repeat(PROGRESS_BAR_WIDTH - full)}`;
    io.stderr.write(
      share >= 1
        ? `\r${' '.repeat(PROGRESS_BAR_WIDTH + 8)}\r`
        : `\r[${bar}] ${String(Math.floor(share * 100)).padStart(3)}%`,
    );
  };
}

function printVerification(
  out: Output,
  verification: ExportVerification,
  trusted: TrustedInputs,
  seconds: number,
): void {
  const { entries, proved, publicKey, fault } = verification;
  if (fault === null) {
    out.printLine(paint('green', 'good'), `\t${entries} ${entries === 1 ? 'entry' : 'entries'}`);
    if (out.isTerminal) out.printLine(`${Math.round(entries / seconds).toLocaleString('en')} entries/s`);
    if (trusted.key === undefined && trusted.checkpoint === undefined)
      out.printNote(
        `Every entry is signed with the key\n  ${publicKey}\n` +
          'which came with the export. Compare it with the key that you know, or pass that\n' +
          'key with --key. Pass a checkpoint that you kept with --checkpoint to make sure\n' +
          'that no entries are missing at the end.',
      );
    return;
  }
  out.printLine(paint('red', 'bad'), `\t${formatFaultLocation(fault)}`);
  if (fault.entry !== null)
    out.printNote(proved === 0 ? 'No entry is verified.' : `Entries 0 to ${proved - 1} are verified.`);
}

function formatFaultLocation({ entry, upTo, why }: ExportFault): string {
  if (entry === null) return why;
  return upTo === null || upTo <= entry
    ? `the first bad entry is ${entry}: ${why}`
    : `the first bad entry is one of ${entry} to ${upTo}: ${why}`;
}
