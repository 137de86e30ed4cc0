import { type FileHandle, mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VerbError } from './verb.ts';

/**
 * Copies a stream into a temporary file, so that it can be read twice. The file is unlinked before the first write, so a
 * crash leaves nothing behind and no other process can open it.
 */
export async function spoolToFile(
  source: AsyncIterable<Uint8Array | string>,
  buildReadError: (error: NodeJS.ErrnoException) => Error,
): Promise<FileHandle> {
  const handle = await openUnlinkedFile();
  try {
    for await (const chunk of source) {
      await handle.writeFile(chunk).catch((error: NodeJS.ErrnoException) => {
        throw buildSpoolError(error);
      });
    }
    return handle;
  } catch (error) {
    await handle.close();
    throw error instanceof VerbError ? error : buildReadError(error as NodeJS.ErrnoException);
  }
}

async function openUnlinkedFile(): Promise<FileHandle> {
  try {
    const directory = await mkdtemp(join(tmpdir(), 'oncegate-spool-'));
    try {
      return await open(join(directory, 'export'), 'wx+', 0o600);
    } finally {
      await rm(directory, { recursive: true });
    }
  } catch (error) {
    throw buildSpoolError(error as NodeJS.ErrnoException);
  }
}

function buildSpoolError({ code, message }: NodeJS.ErrnoException): VerbError {
  const text = `Cannot write a temporary copy of the input to ${tmpdir()}: ${code ?? message}. Free some space there, or set TMPDIR.`;
  return new VerbError('no_room', text);
}
