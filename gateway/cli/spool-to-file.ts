import { type FileHandle, mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { NotGood } from './verb.ts';

/**
 * All of a stream as a file that can be read twice. It has lost its name before the first byte is in it: whoever ends this
 * process, however, leaves nothing behind, and nobody else can open it.
 */
export async function spool(
  source: AsyncIterable<Uint8Array | string>,
  unreadable: (error: NodeJS.ErrnoException) => Error,
): Promise<FileHandle> {
  const handle = await nameless();
  try {
    for await (const chunk of source) {
      await handle.writeFile(chunk).catch((error: NodeJS.ErrnoException) => {
        throw noRoom(error);
      });
    }
    return handle;
  } catch (error) {
    await handle.close();
    throw error instanceof NotGood ? error : unreadable(error as NodeJS.ErrnoException);
  }
}

async function nameless(): Promise<FileHandle> {
  try {
    const directory = await mkdtemp(join(tmpdir(), 'oncegate-spool-'));
    try {
      return await open(join(directory, 'export'), 'wx+', 0o600);
    } finally {
      await rm(directory, { recursive: true });
    }
  } catch (error) {
    throw noRoom(error as NodeJS.ErrnoException);
  }
}

function noRoom({ code, message }: NodeJS.ErrnoException): NotGood {
  const text = `what can be read only once is kept in ${tmpdir()} meanwhile, and cannot be: ${code ?? message}`;
  return new NotGood('no_room', text);
}
