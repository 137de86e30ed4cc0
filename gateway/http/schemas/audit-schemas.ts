import { z } from 'zod';
import { count, reason, text, uuid } from './fields.ts';

const scopeText = z.string().min(1).max(4_096);
const scopeId = z.string().regex(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, 'must be an id that this API returned');

export const eraseBody = z
  .strictObject({
    agent: scopeText.optional(),
    saga: scopeId.optional(),
    txn: scopeId.optional(),
    subject: scopeText.optional().describe('Erases every call that has this text in its arguments.'),
    cursor: z.string().optional().describe('Continues where an earlier answer stopped.'),
    reason,
  })
  .describe('Exactly one of agent, saga, txn and subject.');

export const erasureAnswer = z.object({
  erased: count,
  open: z.array(uuid).describe('Calls in scope that cannot be erased yet.'),
  openRuns: z.array(uuid).describe('Runs in scope that are not finished and keep their checkpoint.'),
  unreadable: z.array(uuid).describe('Calls whose encrypted arguments could not be searched.'),
  cursor: text.nullable(),
});

export const sha256Text = text.describe('SHA-256 in hex.');
const note = text.describe('A signed note (C2SP tlog-checkpoint).');
const entry = z.looseObject({}).describe('The logged entry. The hash is over its canonical text.');

export const logEntryAnswer = z.object({
  index: count,
  leaf: sha256Text,
  checkpoint: note.optional(),
  entry: entry.optional(),
});
export const inclusionProofAnswer = z.object({
  leaf: sha256Text,
  index: count,
  size: count,
  root: sha256Text,
  proof: z.array(sha256Text),
  checkpoint: note,
  entry,
});
export const consistencyProofAnswer = z.object({
  from: count,
  to: count,
  proof: z.array(sha256Text),
  checkpoint: note,
});
export const logAcceptanceAnswer = z.object({ accepted: z.boolean(), checkpoint: note });
