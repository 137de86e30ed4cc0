import { formatLastLine } from '../../../domain/audit/audit-export.ts';
import { NoteError, parseLogCheckpoint } from '../../../domain/audit/signed-note.ts';
import { askForText } from '../../ask-gateway.ts';
import { type Io, NotGood, type Verb } from '../../verb.ts';

const PAGE = 4_096;

export const auditExportVerb: Verb = {
  name: 'audit export',
  summary: 'the whole log as JSON lines, to standard output',
  run: async ({ io }) => {
    const checkpoint = await askForText(io, '/admin/audit/checkpoint');
    const publicKey = (await askForText(io, '/admin/audit/key')).trim();
    const size = sizeOf(checkpoint);
    for (let from = 0; from < size; from += PAGE) {
      const to = Math.min(size, from + PAGE);
      const query = { from: String(from), to: String(to), format: 'jsonl' };
      await write(io, await askForText(io, '/admin/audit/entries', { query }));
    }
    await write(io, `${formatLastLine(checkpoint, publicKey)}\n`);
    return 0;
  },
};

function sizeOf(checkpoint: string): number {
  try {
    return parseLogCheckpoint(checkpoint).size;
  } catch (error) {
    if (!(error instanceof NoteError)) throw error;
    throw new NotGood('not_a_gateway', 'what answers at ONCEGATE_URL gives no checkpoint');
  }
}

/** As fast as whoever reads it, and no faster: a log is larger than memory. */
async function write({ stdout }: Io, text: string): Promise<void> {
  if (stdout.write(text) === false) await new Promise<void>((resolve) => stdout.once?.('drain', resolve) ?? resolve());
}
