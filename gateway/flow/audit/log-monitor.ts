import type { CheckpointFiles } from '../../../adapters/checkpoint-files.ts';
import type { WitnessClient } from '../../../adapters/witness-client.ts';
import { MissingHashError, Proof } from '../../domain/audit/merkle.ts';
import {
  type LogCheckpoint,
  NoteError,
  type NoteSigner,
  NoteVerifier,
  parseLogCheckpoint,
} from '../../domain/audit/signed-note.ts';
import { GatewayError } from '../../domain/errors.ts';
import { type LogTip, readNewestCheckpoint, readProofHashes } from '../../ledger/audit/audit-log.ts';
import type { Database } from '../../ledger/db.ts';
import type { Lease } from '../../ledger/process-lease.ts';
import type { AppLogger } from '../context.ts';

export interface LogMonitorOptions {
  readonly db: Database;
  readonly lease: Lease;
  readonly key: NoteSigner;
  /** The anchors. The first one is in the data directory. */
  readonly files: readonly CheckpointFiles[];
  readonly witnesses: readonly WitnessClient[];
  readonly log: AppLogger;
}

/** The newest checkpoint in one anchor directory. */
interface Anchor {
  readonly files: CheckpointFiles;
  readonly note: string | undefined;
  readonly size: number;
}

const CHECKING_MESSAGE = 'The log is still being compared with its newest checkpoint.';
const REMEDY_MESSAGE =
  'Nothing is sent until this is repaired, or a person accepts the log: see docs/guides/audit-log.md.';

/**
 * Checks that the log in the database extends the newest checkpoint in the anchors. If it does not, the database was restored
 * from a backup, replaced or tampered with, and nothing may be sent.
 *
 * Every send reads the result from memory. The check runs about once a second, and again under every new lease: a replica
 * whose database is replaced loses its lease.
 */
export class LogMonitor {
  readonly #options: LogMonitorOptions;
  readonly #verifier: NoteVerifier;
  #lastCheck: { readonly lease: string; readonly doubt: string | undefined } = { lease: '', doubt: undefined };
  /** The checkpoints that passed the last check. Equal checkpoints are not checked again. */
  #verifiedNotes = '';
  /** The size of the log at the last check that passed. */
  #verifiedSize = 0;
  readonly #contradictions = new Map<string, string>();
  readonly #warnings = new Map<string, string>();
  readonly #lastAnchors = new Map<string, Anchor>();
  #cosigning: Promise<void> | undefined;

  constructor(options: LogMonitorOptions) {
    this.#options = options;
    this.#verifier = new NoteVerifier(options.key.verifier);
  }

  /** The reason why nothing may be sent; undefined when the log is good. */
  findFault(): string | undefined {
    const { lease, doubt } = this.#lastCheck;
    const [contradiction] = this.#contradictions.values();
    return doubt ?? contradiction ?? (lease === this.#options.lease.id ? undefined : CHECKING_MESSAGE);
  }

  /** Problems that do not stop calls. */
  warnings(): string[] {
    return [...this.#warnings.values()];
  }

  /** Compares the log with the anchors, and writes its newest checkpoint into them. */
  async verify(): Promise<void> {
    const { lease, log } = this.#options;
    const { id } = lease;
    // Read the anchors before the database, because an anchor is never newer than the committed log.
    const anchors = await Promise.all(this.#options.files.map((files) => this.#readAnchor(files)));
    const newest = anchors.reduce((a, b) => (b.size > a.size ? b : a));
    const note = await readNewestCheckpoint(this.#options.db);
    const notes = `${newest.note}${note}`;
    const doubt = notes === this.#verifiedNotes ? undefined : await this.#compareWithAnchor(newest, note);
    if (doubt !== undefined && doubt !== this.#lastCheck.doubt) log.error({ doubt }, 'The audit log is in doubt.');
    this.#verifiedNotes = doubt === undefined ? notes : '';
    this.#lastCheck = { lease: id, doubt };
    if (doubt === undefined) this.#verifiedSize = note === undefined ? 0 : parseLogCheckpoint(note).size;
    if (doubt === undefined && note !== undefined) await this.#writeAnchors(note, anchors);
  }

  /** Throws if the tip differs from the newest signed log, or is older. Called right before the next checkpoint is signed. */
  async requireSignedTip({ size, root, note }: LogTip): Promise<void> {
    const anchors = await Promise.all(this.#options.files.map((files) => this.#readAnchor(files)));
    const minSize = Math.max(this.#verifiedSize, ...anchors.map((anchor) => anchor.size));
    const signed = note === undefined ? undefined : this.#verifier.verifyCheckpoint(note);
    const isSigned = signed === undefined ? size === 0 : signed.size === size && signed.root.equals(root);
    if (isSigned && size >= minSize) return;
    // The log changed since it passed the check, so check it again.
    this.#verifiedNotes = '';
    throw new GatewayError(
      'conflict',
      `The log in the database (${size} entries) is not the log that was signed, so the gateway adds nothing to it.`,
    );
  }

  /** Reads an anchor. If that fails, returns the last checkpoint that was read. An anchor that was never readable is an error. */
  async #readAnchor(files: CheckpointFiles): Promise<Anchor> {
    const { directory } = files;
    try {
      const found = await readAnchorFile(files);
      this.#lastAnchors.set(directory, found);
      return found;
    } catch (error) {
      const lastSeen = this.#lastAnchors.get(directory);
      if (lastSeen === undefined) throw error;
      this.#warn(directory, `The checkpoints in ${directory} cannot be read: ${error}`);
      return lastSeen;
    }
  }

  /** Sends the newest checkpoint to the witnesses. Resolves when each has answered or failed. */
  requestCosignatures(): Promise<void> {
    this.#cosigning ??= this.#requestAllCosignatures().finally(() => {
      this.#cosigning = undefined;
    });
    return this.#cosigning;
  }

  /** The newest checkpoint of each anchor. */
  async readAnchorNotes(): Promise<string[]> {
    const notes = await Promise.all(this.#options.files.map((files) => files.readNewest()));
    return notes.filter((note) => note !== undefined);
  }

  /** Archives the checkpoints in the anchors, so that the log in the database counts from here on. */
  async acceptCurrentLog(): Promise<void> {
    for (const files of this.#options.files) await files.archive();
    this.#verifiedNotes = '';
    this.#contradictions.clear();
    await this.verify();
    await this.requestCosignatures();
  }

  async #compareWithAnchor({ files, note: anchorNote }: Anchor, note: string | undefined): Promise<string | undefined> {
    const { directory } = files;
    try {
      const current = note === undefined ? undefined : this.#verifyNote(note, 'The newest checkpoint in the database');
      const anchored =
        anchorNote === undefined ? undefined : this.#verifyNote(anchorNote, `The newest checkpoint in ${directory}`);
      if (anchored !== undefined && (current === undefined || current.size < anchored.size))
        throw new LogIntegrityError(
          `The log in the database ends after ${current?.size ?? 0} entries, but the newest checkpoint in ${directory} covers ${anchored.size}: an older backup was restored, the database is another one, or entries are gone.`,
        );
      for (const checkpoint of [anchored, current]) if (checkpoint !== undefined) await this.#verifyRoot(checkpoint);
      return undefined;
    } catch (error) {
      if (error instanceof LogIntegrityError) return `${error.message} ${REMEDY_MESSAGE}`;
      throw error;
    }
  }

  #verifyNote(note: string, what: string): LogCheckpoint {
    try {
      return this.#verifier.verifyCheckpoint(note);
    } catch (error) {
      if (!(error instanceof NoteError)) throw error;
      throw new LogIntegrityError(
        `${what} does not belong to this log and key: ${error.message}. Let all replicas share the data directory, or give them the same audit.key.`,
      );
    }
  }

  async #verifyRoot({ size, root }: LogCheckpoint): Promise<void> {
    try {
      const [found] = await readProofHashes(this.#options.db, Proof.root(size));
      if (found?.equals(root)) return;
    } catch (error) {
      if (!(error instanceof MissingHashError)) throw error;
    }
    throw new LogIntegrityError(
      `The first ${size} entries of the log are not those that were signed: the log was rewritten.`,
    );
  }

  async #writeAnchors(note: string, anchors: readonly Anchor[]): Promise<void> {
    const { size } = parseLogCheckpoint(note);
    for (const { files } of anchors.filter((anchor) => anchor.size < size)) {
      const { directory } = files;
      await files.write(note, size).then(
        () => this.#warnings.delete(directory),
        (error: unknown) => this.#warn(directory, `The newest checkpoint cannot be written to ${directory}: ${error}`),
      );
    }
  }

  async #requestAllCosignatures(): Promise<void> {
    await Promise.all(this.#options.witnesses.map((witness) => this.#requestCosignature(witness)));
  }

  async #requestCosignature(witness: WitnessClient): Promise<void> {
    const { db } = this.#options;
    const note = await readNewestCheckpoint(db);
    // A log in doubt is not shown to witnesses.
    if (note === undefined || this.#lastCheck.doubt !== undefined) return;
    const checkpoint = parseLogCheckpoint(note);
    const result = await witness.requestCosignature(note, checkpoint, (size) =>
      readProofHashes(db, Proof.consistency(size, checkpoint.size)),
    );
    if (result.as === 'silent')
      return this.#warn(witness.url, `The witness ${witness.url} does not cosign: ${result.why}`);
    this.#warnings.delete(witness.url);
    if (result.as === 'cosigned') {
      this.#contradictions.delete(witness.url);
      const [files] = this.#options.files;
      return files?.write(`${note}${result.line}`, checkpoint.size).catch((error: unknown) => {
        this.#warn(files.directory, `A cosignature cannot be written to ${files.directory}: ${error}`);
      });
    }
    if (result.as === 'ahead' && result.size <= (await this.#readSize())) return this.#requestCosignature(witness);
    const why =
      result.as === 'ahead' ? `it cosigned ${result.size} entries, but this log has ${checkpoint.size}` : result.why;
    this.#contradictions.set(witness.url, `The witness ${witness.url} contradicts this log: ${why}. ${REMEDY_MESSAGE}`);
    this.#options.log.error({ witness: witness.url, why }, 'A witness contradicts the audit log.');
  }

  async #readSize(): Promise<number> {
    const note = await readNewestCheckpoint(this.#options.db);
    return note === undefined ? 0 : parseLogCheckpoint(note).size;
  }

  #warn(about: string, warning: string): void {
    if (!this.#warnings.has(about)) this.#options.log.warn({ about }, warning);
    this.#warnings.set(about, warning);
  }
}

class LogIntegrityError extends Error {}

/** A checkpoint that cannot be parsed counts as the newest, so that it is examined and not skipped. */
async function readAnchorFile(files: CheckpointFiles): Promise<Anchor> {
  const note = await files.readNewest();
  try {
    return { files, note, size: note === undefined ? -1 : parseLogCheckpoint(note).size };
  } catch {
    return { files, note, size: Number.POSITIVE_INFINITY };
  }
}
