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
import { spool } from '../../spool-to-file.ts';
import { type Invocation, type Io, NotGood, type Verb } from '../../verb.ts';

const CHUNK = 1024 * 1024;
/** The last line holds a checkpoint and a key: far less than this. */
const TAIL = 64 * 1024;
const BAR = 30;

export const auditVerifyVerb: Verb = {
  name: 'audit verify',
  summary: 'whether an export of the log is what was signed; asks nobody',
  operands: [{ name: 'file', help: 'an export; - is standard input, and any pipe will do' }],
  options: {
    checkpoint: { value: 'FILE', help: 'a checkpoint that you kept: the export must hold all it vouches for' },
    key: { value: 'FILE', help: 'the public key that you kept: the export must be signed with it' },
  },
  run: async (invocation) => {
    const { io, out, operands } = invocation;
    const trusted = await trustedOf(invocation);
    const file = await openExport(io, operands[0] ?? '');
    const started = performance.now();
    const verdict = await verify(file, trusted, progressOf(io, out)).finally(() => file.handle.close());
    const seconds = (performance.now() - started) / 1_000;
    out.json({ good: verdict.isGood, ...shown(verdict), fault: verdict.fault });
    tell(out, verdict, trusted, seconds);
    return verdict.isGood ? 0 : 1;
  },
};

function shown({ entries, proved, publicKey }: ExportVerification) {
  return { entries, proved, publicKey };
}

async function trustedOf({ io, text }: Invocation): Promise<TrustedInputs> {
  const read = async (option: string) => {
    const name = text(option);
    return name === undefined ? undefined : readOrSay(resolve(io.cwd, name));
  };
  return { key: (await read('key'))?.trim(), checkpoint: await read('checkpoint') };
}

async function readOrSay(file: string): Promise<string> {
  return readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw unreadable(file, error);
  });
}

function unreadable(file: string, { code, message }: NodeJS.ErrnoException): NotGood {
  return new NotGood('unreadable', `${file} cannot be read: ${code ?? message}`);
}

type Progress = (share: number) => void;

interface Export {
  readonly name: string;
  readonly handle: FileHandle;
}

/** An export is read twice, its last line first. What can be read only once is kept beside for that long. */
async function openExport(io: Io, operand: string): Promise<Export> {
  if (operand === '-') return spooled('standard input', io.stdin);
  const name = resolve(io.cwd, operand);
  const handle = await open(name, 'r').catch((error: NodeJS.ErrnoException) => {
    throw unreadable(name, error);
  });
  if ((await handle.stat()).isFile()) return { name, handle };
  try {
    return await spooled(name, handle.createReadStream({ autoClose: false, highWaterMark: CHUNK }));
  } finally {
    await handle.close();
  }
}

async function spooled(name: string, source: Io['stdin']): Promise<Export> {
  const handle = await spool(source, (error) => unreadable(name, error));
  return { name, handle };
}

async function verify(
  { name, handle }: Export,
  trusted: TrustedInputs,
  progress: Progress,
): Promise<ExportVerification> {
  try {
    const { size, publicKey } = await tailOf(handle);
    const verifier = new ExportVerifier(publicKey, trusted);
    const chunks = handle.createReadStream({ start: 0, autoClose: false, highWaterMark: CHUNK });
    let read = 0;
    for await (const chunk of chunks as AsyncIterable<Buffer>) {
      verifier.feed(chunk);
      if (verifier.hasFault) break;
      read += chunk.length;
      progress(read / size);
    }
    return verifier.finish();
  } catch (error) {
    throw unreadable(name, error as NodeJS.ErrnoException);
  } finally {
    progress(1);
  }
}

/** The key stands in the last line, and is needed from the first one on. */
async function tailOf(handle: FileHandle): Promise<{ size: number; publicKey: string | undefined }> {
  const { size } = await handle.stat();
  const tail = Buffer.alloc(Math.min(size, TAIL));
  await handle.read(tail, 0, tail.length, size - tail.length);
  const line = tail.toString('utf8').trimEnd().split('\n').at(-1) ?? '';
  return { size, publicKey: parseLastLine(line)?.publicKey };
}

/** A bar on a terminal, and nothing anywhere else. */
function progressOf(io: Io, out: Output): Progress {
  if (!out.terminal) return () => {};
  let last = -1;
  return (share) => {
    const full = Math.round(Math.min(1, share) * BAR);
    if (full === last) return;
    last = full;
    const bar = `${'#'.repeat(full)}${'.'.repeat(BAR - full)}`;
    io.stderr.write(
      share >= 1 ? `\r${' '.repeat(BAR + 8)}\r` : `\r[${bar}] ${String(Math.floor(share * 100)).padStart(3)}%`,
    );
  };
}

function tell(out: Output, verdict: ExportVerification, trusted: TrustedInputs, seconds: number): void {
  const { entries, proved, publicKey, fault } = verdict;
  if (fault === null) {
    out.line(paint('green', 'good'), `\t${entries} ${entries === 1 ? 'entry' : 'entries'}`);
    if (out.terminal) out.line(`${Math.round(entries / seconds).toLocaleString('en')} entries/s`);
    if (trusted.key === undefined && trusted.checkpoint === undefined)
      out.note(
        `Every entry is signed with ${publicKey}.\n` +
          'That key came with the export: compare it with the one you know, or give it with --key. A checkpoint that you kept,\n' +
          'given with --checkpoint, also shows that nothing was cut off at the end.',
      );
    return;
  }
  out.line(paint('red', 'bad'), `\t${faultText(fault)}`);
  if (fault.entry !== null)
    out.note(proved === 0 ? 'No entry is proved.' : `Entries 0 to ${proved - 1} are as they were signed.`);
}

function faultText({ entry, upTo, why }: ExportFault): string {
  if (entry === null) return why;
  return upTo === null || upTo <= entry
    ? `the first bad entry is ${entry}: ${why}`
    : `the first bad entry is one of ${entry} to ${upTo}: ${why}`;
}
