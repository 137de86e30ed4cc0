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
  /** Where the newest checkpoint is kept outside the database; the first is in the data directory. */
  readonly files: readonly CheckpointFiles[];
  readonly witnesses: readonly WitnessClient[];
  readonly log: AppLogger;
}

/** What one directory vouches for. */
interface Anchor {
  readonly files: CheckpointFiles;
  readonly note: string | undefined;
  readonly size: number;
}

const CHECKING_MESSAGE = 'The log is still being compared with its newest checkpoint.';
const REMEDY_MESSAGE = 'Nothing is sent until this is mended, or accepted by a person: see docs/guides/audit-log.md.';

/**
 * Whether the log in the database is still the one that was signed: it must begin with the newest checkpoint that is kept
 * outside of it. If it does not, the database was restored from a backup, is another one, or was tampered with, and nothing
 * may be sent. Asked before every send, answered from memory; looked at about every second, and anew under every new lease,
 * because a database that was replaced under a running process costs it its lease.
 */
export class LogMonitor {
  readonly #options: LogMonitorOptions;
  readonly #verifier: NoteVerifier;
  #lastCheck: { readonly lease: string; readonly doubt: string | undefined } = { lease: '', doubt: undefined };
  /** What was found good the last time: the same again need not be looked into. */
  #verifiedNotes = '';
  /** How large the log was then. */
  #verifiedSize = 0;
  readonly #contradictions = new Map<string, string>();
  readonly #warnings = new Map<string, string>();
  readonly #lastAnchors = new Map<string, Anchor>();
  #cosigning: Promise<void> | undefined;

  constructor(options: LogMonitorOptions) {
    this.#options = options;
    this.#verifier = new NoteVerifier(options.key.verifier);
  }

  /** Why nothing may be sent; undefined when all is well. */
  findFault(): string | undefined {
    const { lease, doubt } = this.#lastCheck;
    const [contradiction] = this.#contradictions.values();
    return doubt ?? contradiction ?? (lease === this.#options.lease.id ? undefined : CHECKING_MESSAGE);
  }

  /** What is not as it should be although calls are served. */
  warnings(): string[] {
    return [...this.#warnings.values()];
  }

  /** Compares the log with what is kept of it, and keeps its newest checkpoint. */
  async verify(): Promise<void> {
    const { lease, log } = this.#options;
    const { id } = lease;
    // In this order: what is kept outside is never newer than what is committed.
    const anchors = await Promise.all(this.#options.files.map((files) => this.#readAnchor(files)));
    const newest = anchors.reduce((a, b) => (b.size > a.size ? b : a));
    const note = await readNewestCheckpoint(this.#options.db);
    const judged = `${newest.note}${note}`;
    const doubt = judged === this.#verifiedNotes ? undefined : await this.#compareWithAnchor(newest, note);
    if (doubt !== undefined && doubt !== this.#lastCheck.doubt) log.error({ doubt }, 'the log is in doubt');
    this.#verifiedNotes = doubt === undefined ? judged : '';
    this.#lastCheck = { lease: id, doubt };
    if (doubt === undefined) this.#verifiedSize = note === undefined ? 0 : parseLogCheckpoint(note).size;
    if (doubt === undefined && note !== undefined) await this.#writeAnchors(note, anchors);
  }

  /** Right before the next checkpoint is signed: that this is the log which was signed before, and not an older state of it. */
  async requireSignedTip({ size, root, note }: LogTip): Promise<void> {
    const anchors = await Promise.all(this.#options.files.map((files) => this.#readAnchor(files)));
    const least = Math.max(this.#verifiedSize, ...anchors.map((anchor) => anchor.size));
    const signed = note === undefined ? undefined : this.#verifier.verifyCheckpoint(note);
    const isOurs = signed === undefined ? size === 0 : signed.size === size && signed.root.equals(root);
    if (isOurs && size >= least) return;
    // What was found good is not what is there now.
    this.#verifiedNotes = '';
    throw new GatewayError(
      'conflict',
      `nothing is added to a log of ${size} entries that is not the one that was signed`,
    );
  }

  /** A place that cannot be read now stands for what was last seen there; one that never could be is no proof of anything. */
  async #readAnchor(files: CheckpointFiles): Promise<Anchor> {
    const { directory } = files;
    try {
      const found = await readAnchorFile(files);
      this.#lastAnchors.set(directory, found);
      return found;
    } catch (error) {
      const seen = this.#lastAnchors.get(directory);
      if (seen === undefined) throw error;
      this.#warn(directory, `the checkpoints in ${directory} cannot be read: ${error}`);
      return seen;
    }
  }

  /** Shows the newest checkpoint to the witnesses. Resolves when each has answered, or is not going to. */
  requestCosignatures(): Promise<void> {
    this.#cosigning ??= this.#requestAllCosignatures().finally(() => {
      this.#cosigning = undefined;
    });
    return this.#cosigning;
  }

  /** The newest checkpoint of each place outside the database. */
  async readAnchorNotes(): Promise<string[]> {
    const notes = await Promise.all(this.#options.files.map((files) => files.readNewest()));
    return notes.filter((note) => note !== undefined);
  }

  /** What is kept outside no longer counts: from here on the log in the database does. */
  async acceptCurrentLog(): Promise<void> {
    for (const files of this.#options.files) await files.archive();
    this.#verifiedNotes = '';
    this.#contradictions.clear();
    await this.verify();
    await this.requestCosignatures();
  }

  async #compareWithAnchor({ files, note: kept }: Anchor, note: string | undefined): Promise<string | undefined> {
    try {
      const now = note === undefined ? undefined : this.#verifyNote(note, 'The newest checkpoint in the database');
      const was =
        kept === undefined ? undefined : this.#verifyNote(kept, `The newest checkpoint in ${files.directory}`);
      if (was !== undefined && (now === undefined || now.size < was.size))
        throw new LogIntegrityError(
          `The log in the database ends after ${now?.size ?? 0} entries, but ${files.directory} vouches for ${was.size}: an older backup was restored, the database is another one, or entries are gone.`,
        );
      for (const checkpoint of [was, now]) if (checkpoint !== undefined) await this.#verifyRoot(checkpoint);
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
        `${what} is not one of this log and key: ${error.message}. Replicas share the data directory, or have the same audit.key.`,
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
      `The first ${size} entries of the log are not those that were signed: it was rewritten.`,
    );
  }

  async #writeAnchors(note: string, anchors: readonly Anchor[]): Promise<void> {
    const { size } = parseLogCheckpoint(note);
    for (const { files } of anchors.filter((anchor) => anchor.size < size)) {
      const { directory } = files;
      await files.write(note, size).then(
        () => this.#warnings.delete(directory),
        (error: unknown) => this.#warn(directory, `the newest checkpoint cannot be kept in ${directory}: ${error}`),
      );
    }
  }

  async #requestAllCosignatures(): Promise<void> {
    await Promise.all(this.#options.witnesses.map((witness) => this.#requestCosignature(witness)));
  }

  async #requestCosignature(witness: WitnessClient): Promise<void> {
    const { db } = this.#options;
    const note = await readNewestCheckpoint(db);
    // What is in doubt by itself is shown to nobody.
    if (note === undefined || this.#lastCheck.doubt !== undefined) return;
    const checkpoint = parseLogCheckpoint(note);
    const shown = await witness.requestCosignature(note, checkpoint, (size) =>
      readProofHashes(db, Proof.consistency(size, checkpoint.size)),
    );
    if (shown.as === 'silent')
      return this.#warn(witness.url, `the witness ${witness.url} does not cosign: ${shown.why}`);
    this.#warnings.delete(witness.url);
    if (shown.as === 'cosigned') {
      this.#contradictions.delete(witness.url);
      const [files] = this.#options.files;
      return files?.write(`${note}${shown.line}`, checkpoint.size).catch((error: unknown) => {
        this.#warn(files.directory, `a cosignature cannot be kept in ${files.directory}: ${error}`);
      });
    }
    if (shown.as === 'ahead' && shown.size <= (await this.#readSize())) return this.#requestCosignature(witness);
    const why = shown.as === 'ahead' ? `it cosigned ${shown.size} entries, there are ${checkpoint.size}` : shown.why;
    this.#contradictions.set(witness.url, `The witness ${witness.url} contradicts this log: ${why}. ${REMEDY_MESSAGE}`);
    this.#options.log.error({ witness: witness.url, why }, 'a witness contradicts the log');
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

/** One that cannot be read counts as the newest: it must be looked into, not passed over. */
async function readAnchorFile(files: CheckpointFiles): Promise<Anchor> {
  const note = await files.readNewest();
  try {
    return { files, note, size: note === undefined ? -1 : parseLogCheckpoint(note).size };
  } catch {
    return { files, note, size: Number.POSITIVE_INFINITY };
  }
}
