import type { CheckpointFiles } from '../../adapters/checkpoint-files.ts';
import type { Witness } from '../../adapters/witness.ts';
import { GatewayError } from '../domain/errors.ts';
import { MissingHash, Proof } from '../domain/merkle.ts';
import { type Checkpoint, NoteError, type NoteKey, NoteVerifier, readCheckpoint } from '../domain/signed-note.ts';
import { newestCheckpoint, proofHashes, type Tip } from '../ledger/audit-log.ts';
import type { Database } from '../ledger/db.ts';
import type { Lease } from '../ledger/processes.ts';
import type { Log } from './station.ts';

export interface LogWatchOptions {
  readonly db: Database;
  readonly lease: Lease;
  readonly key: NoteKey;
  /** Where the newest checkpoint is kept outside the database; the first is in the data directory. */
  readonly files: readonly CheckpointFiles[];
  readonly witnesses: readonly Witness[];
  readonly log: Log;
}

/** What one directory vouches for. */
interface Anchored {
  readonly files: CheckpointFiles;
  readonly note: string | undefined;
  readonly size: number;
}

const CHECKING = 'The log is still being compared with its newest checkpoint.';
const REMEDY = 'Nothing is sent until this is mended, or accepted by a person: see docs/audit.md.';

/**
 * Whether the log in the database is still the one that was signed: it must begin with the newest checkpoint that is kept
 * outside of it. If it does not, the database was restored from a backup, is another one, or was tampered with, and nothing
 * may be sent. Asked before every send, answered from memory; looked at about every second, and anew under every new lease,
 * because a database that was replaced under a running process costs it its lease.
 */
export class LogWatch {
  readonly #options: LogWatchOptions;
  readonly #verifier: NoteVerifier;
  #standing: { readonly lease: string; readonly doubt: string | undefined } = { lease: '', doubt: undefined };
  /** What was found good the last time: the same again need not be looked into. */
  #good = '';
  /** How large the log was then. */
  #trusted = 0;
  readonly #contradictions = new Map<string, string>();
  readonly #warnings = new Map<string, string>();
  readonly #seen = new Map<string, Anchored>();
  #showing: Promise<void> | undefined;

  constructor(options: LogWatchOptions) {
    this.#options = options;
    this.#verifier = new NoteVerifier(options.key.verifier);
  }

  /** Why nothing may be sent; undefined when all is well. */
  doubt(): string | undefined {
    const { lease, doubt } = this.#standing;
    const [contradiction] = this.#contradictions.values();
    return doubt ?? contradiction ?? (lease === this.#options.lease.id ? undefined : CHECKING);
  }

  /** What is not as it should be although calls are served. */
  warnings(): string[] {
    return [...this.#warnings.values()];
  }

  /** Compares the log with what is kept of it, and keeps its newest checkpoint. */
  async look(): Promise<void> {
    const { lease, log } = this.#options;
    const { id } = lease;
    // In this order: what is kept outside is never newer than what is committed.
    const anchors = await Promise.all(this.#options.files.map((files) => this.#anchored(files)));
    const newest = anchors.reduce((a, b) => (b.size > a.size ? b : a));
    const note = await newestCheckpoint(this.#options.db);
    const judged = `${newest.note}${note}`;
    const doubt = judged === this.#good ? undefined : await this.#judge(newest, note);
    if (doubt !== undefined && doubt !== this.#standing.doubt) log.error({ doubt }, 'the log is in doubt');
    this.#good = doubt === undefined ? judged : '';
    this.#standing = { lease: id, doubt };
    if (doubt === undefined) this.#trusted = note === undefined ? 0 : readCheckpoint(note).size;
    if (doubt === undefined && note !== undefined) await this.#keep(note, anchors);
  }

  /** Right before the next checkpoint is signed: that this is the log which was signed before, and not an older state of it. */
  async vouchFor({ size, root, note }: Tip): Promise<void> {
    const anchors = await Promise.all(this.#options.files.map((files) => this.#anchored(files)));
    const least = Math.max(this.#trusted, ...anchors.map((anchor) => anchor.size));
    const signed = note === undefined ? undefined : this.#verifier.open(note);
    const isOurs = signed === undefined ? size === 0 : signed.size === size && signed.root.equals(root);
    if (isOurs && size >= least) return;
    // What was found good is not what is there now.
    this.#good = '';
    throw new GatewayError(
      'conflict',
      `nothing is added to a log of ${size} entries that is not the one that was signed`,
    );
  }

  /** A place that cannot be read now stands for what was last seen there; one that never could be is no proof of anything. */
  async #anchored(files: CheckpointFiles): Promise<Anchored> {
    const { directory } = files;
    try {
      const found = await anchored(files);
      this.#seen.set(directory, found);
      return found;
    } catch (error) {
      const seen = this.#seen.get(directory);
      if (seen === undefined) throw error;
      this.#warn(directory, `the checkpoints in ${directory} cannot be read: ${error}`);
      return seen;
    }
  }

  /** Shows the newest checkpoint to the witnesses. Resolves when each has answered, or is not going to. */
  show(): Promise<void> {
    this.#showing ??= this.#showAll().finally(() => {
      this.#showing = undefined;
    });
    return this.#showing;
  }

  /** The newest checkpoint of each place outside the database. */
  async kept(): Promise<string[]> {
    const notes = await Promise.all(this.#options.files.map((files) => files.newest()));
    return notes.filter((note) => note !== undefined);
  }

  /** What is kept outside no longer counts: from here on the log in the database does. */
  async accept(): Promise<void> {
    for (const files of this.#options.files) await files.setAside();
    this.#good = '';
    this.#contradictions.clear();
    await this.look();
    await this.show();
  }

  async #judge({ files, note: kept }: Anchored, note: string | undefined): Promise<string | undefined> {
    try {
      const now = note === undefined ? undefined : this.#open(note, 'The newest checkpoint in the database');
      const was = kept === undefined ? undefined : this.#open(kept, `The newest checkpoint in ${files.directory}`);
      if (was !== undefined && (now === undefined || now.size < was.size))
        throw new Doubt(
          `The log in the database ends after ${now?.size ?? 0} entries, but ${files.directory} vouches for ${was.size}: an older backup was restored, the database is another one, or entries are gone.`,
        );
      for (const checkpoint of [was, now]) if (checkpoint !== undefined) await this.#compare(checkpoint);
      return undefined;
    } catch (error) {
      if (error instanceof Doubt) return `${error.message} ${REMEDY}`;
      throw error;
    }
  }

  #open(note: string, what: string): Checkpoint {
    try {
      return this.#verifier.open(note);
    } catch (error) {
      if (!(error instanceof NoteError)) throw error;
      throw new Doubt(
        `${what} is not one of this log and key: ${error.message}. Replicas share the data directory, or have the same audit.key.`,
      );
    }
  }

  async #compare({ size, root }: Checkpoint): Promise<void> {
    try {
      const [found] = await proofHashes(this.#options.db, Proof.root(size));
      if (found?.equals(root)) return;
    } catch (error) {
      if (!(error instanceof MissingHash)) throw error;
    }
    throw new Doubt(`The first ${size} entries of the log are not those that were signed: it was rewritten.`);
  }

  async #keep(note: string, anchors: readonly Anchored[]): Promise<void> {
    const { size } = readCheckpoint(note);
    for (const { files } of anchors.filter((anchor) => anchor.size < size)) {
      const { directory } = files;
      await files.keep(note, size).then(
        () => this.#warnings.delete(directory),
        (error: unknown) => this.#warn(directory, `the newest checkpoint cannot be kept in ${directory}: ${error}`),
      );
    }
  }

  async #showAll(): Promise<void> {
    await Promise.all(this.#options.witnesses.map((witness) => this.#showTo(witness)));
  }

  async #showTo(witness: Witness): Promise<void> {
    const { db } = this.#options;
    const note = await newestCheckpoint(db);
    // What is in doubt by itself is shown to nobody.
    if (note === undefined || this.#standing.doubt !== undefined) return;
    const checkpoint = readCheckpoint(note);
    const shown = await witness.show(note, checkpoint, (size) =>
      proofHashes(db, Proof.consistency(size, checkpoint.size)),
    );
    if (shown.as === 'silent')
      return this.#warn(witness.url, `the witness ${witness.url} does not cosign: ${shown.why}`);
    this.#warnings.delete(witness.url);
    if (shown.as === 'cosigned') {
      this.#contradictions.delete(witness.url);
      const [files] = this.#options.files;
      return files?.keep(`${note}${shown.line}`, checkpoint.size).catch((error: unknown) => {
        this.#warn(files.directory, `a cosignature cannot be kept in ${files.directory}: ${error}`);
      });
    }
    if (shown.as === 'ahead' && shown.size <= (await this.#sizeNow())) return this.#showTo(witness);
    const why = shown.as === 'ahead' ? `it cosigned ${shown.size} entries, there are ${checkpoint.size}` : shown.why;
    this.#contradictions.set(witness.url, `The witness ${witness.url} contradicts this log: ${why}. ${REMEDY}`);
    this.#options.log.error({ witness: witness.url, why }, 'a witness contradicts the log');
  }

  async #sizeNow(): Promise<number> {
    const note = await newestCheckpoint(this.#options.db);
    return note === undefined ? 0 : readCheckpoint(note).size;
  }

  #warn(about: string, warning: string): void {
    if (!this.#warnings.has(about)) this.#options.log.warn({ about }, warning);
    this.#warnings.set(about, warning);
  }
}

class Doubt extends Error {}

/** One that cannot be read counts as the newest: it must be looked into, not passed over. */
async function anchored(files: CheckpointFiles): Promise<Anchored> {
  const note = await files.newest();
  try {
    return { files, note, size: note === undefined ? -1 : readCheckpoint(note).size };
  } catch {
    return { files, note, size: Number.POSITIVE_INFINITY };
  }
}
