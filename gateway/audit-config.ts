import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { z } from 'zod';
import { NoteError, NoteSigner, NoteVerifier } from './domain/audit/signed-note.ts';
import type { Diagnostics, SourceFile } from './policy/faults.ts';

/** The key of the audit log, and where its newest checkpoint is kept besides the data directory. */
export interface AuditConfig {
  /** The file with the signing key; undefined: the one in the data directory. */
  readonly key: string | undefined;
  readonly directories: readonly string[];
  readonly witnesses: readonly { readonly url: string; readonly key: string; readonly allowPrivate: boolean }[];
}

export const NO_AUDIT_CONFIG: AuditConfig = { key: undefined, directories: [], witnesses: [] };

const anchorSchema = z.strictObject({
  directory: z.string().min(1).optional(),
  witness: z.string().min(1).optional(),
  key: z.string().min(1).optional(),
  allowPrivate: z.boolean().optional(),
});

export const auditSchema = z.strictObject({
  key: z.string().min(1).optional(),
  anchors: z.array(anchorSchema).optional(),
});

type Anchor = z.infer<typeof anchorSchema>;
type YamlPath = ReadonlyArray<string | number>;

export async function parseAuditConfig(
  audit: z.infer<typeof auditSchema> | undefined,
  cwd: string,
  source: SourceFile,
  report: Diagnostics,
): Promise<AuditConfig> {
  if (audit === undefined) return NO_AUDIT_CONFIG;
  const fault = (path: YamlPath, message: string) => report.addError({ source, path: ['audit', ...path] }, message);
  const key = audit.key === undefined ? undefined : resolve(cwd, audit.key);
  if (key !== undefined) {
    const keyFault = await findKeyFault(key);
    if (keyFault !== undefined) fault(['key'], keyFault);
  }
  const anchors = audit.anchors ?? [];
  for (const [i, anchor] of anchors.entries())
    for (const [path, message] of findAnchorFaults(anchor)) fault(['anchors', i, ...path], message);
  return {
    key,
    directories: anchors.flatMap(({ directory }) => (directory === undefined ? [] : [resolve(cwd, directory)])),
    witnesses: anchors.flatMap(({ witness, key: verifier = '', allowPrivate = false }) =>
      witness === undefined ? [] : [{ url: witness, key: verifier, allowPrivate }],
    ),
  };
}

/** The message never contains any content of the file. */
async function findKeyFault(file: string): Promise<string | undefined> {
  try {
    NoteSigner.fromPem('any', await readFile(file, 'utf8'));
    return undefined;
  } catch (error) {
    if (error instanceof NoteError)
      return `the file holds no usable key: ${error.message}; create one with openssl genpkey -algorithm ed25519, or remove this line to have one created`;
    return `the file cannot be read: ${(error as NodeJS.ErrnoException).code}`;
  }
}

function* findAnchorFaults({ directory, witness, key, allowPrivate }: Anchor): Generator<[YamlPath, string]> {
  if ((directory === undefined) === (witness === undefined)) {
    yield [[], 'is neither { directory: … } nor { witness: …, key: … }'];
    return;
  }
  if (witness === undefined) {
    if (key !== undefined) yield [['key'], 'is for a witness, not for a directory'];
    if (allowPrivate !== undefined) yield [['allowPrivate'], 'is for a witness, not for a directory'];
    return;
  }
  const protocol = URL.canParse(witness) ? new URL(witness).protocol : '';
  if (protocol !== 'https:' && !(protocol === 'http:' && allowPrivate === true))
    yield [['witness'], 'is not a URL with https:// (or http:// to a private address, with allowPrivate: true)'];
  if (key === undefined) yield [[], 'has no key: add the public key of the witness, which verifies its cosignatures'];
  else if (!isPublicKey(key)) yield [['key'], 'is not a public key such as witness.example+1a2b3c4d+BA…'];
}

function isPublicKey(key: string): boolean {
  try {
    return new NoteVerifier(key) !== undefined;
  } catch {
    return false;
  }
}
