import { formatLastLine } from '../../../domain/audit/audit-export.ts';
import { NoteError, parseLogCheckpoint } from '../../../domain/audit/signed-note.ts';
import { requestText } from '../../gateway-client.ts';
import { type Io, type Verb, VerbError } from '../../verb.ts';

const PAGE_ENTRIES = 4_096;

export const auditExportVerb: Verb = {
  name: 'audit export',
  summary: 'print the whole audit log as JSON lines',
  run: async ({ io }) => {
    const checkpoint = await requestText(io, '/admin/audit/checkpoint');
    const publicKey = (await requestText(io, '/admin/audit/key')).trim();
    const size = readLogSize(checkpoint);
    for (let from = 0; from < size; from += PAGE_ENTRIES) {
      const to = Math.min(size, from + PAGE_ENTRIES);
      const query = { from: String(from), to: String(to), format: 'jsonl' };
      await writeWithBackpressure(io, await requestText(io, '/admin/audit/entries', { query }));
    }
    await writeWithBackpressure(io, `${formatLastLine(checkpoint, publicKey)}\n`);
    return 0;
  },
};

function readLogSize(checkpoint: string): number {
  try {
    return parseLogCheckpoint(checkpoint).size;
  } catch (error) {
    if (!(error instanceof NoteError)) throw error;
    throw new VerbError('not_a_gateway', 'The server at ONCEGATE_URL returned no log checkpoint. Check ONCEGATE_URL.');
  }
}

/** Waits for the reader, because a log may be larger than memory. */
async function writeWithBackpressure({ stdout }: Io, text: string): Promise<void> {
  if (stdout.write(text) === false) await new Promise<void>((resolve) => stdout.once?.('drain', resolve) ?? resolve());
}
