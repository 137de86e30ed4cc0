import pg from 'pg';
import { GatewayError, LedgerError } from '../domain/errors.ts';

/** An answer is owed within two seconds of a dead ledger (I34): no statement and no connection attempt may take longer. */
const STATEMENT_TIMEOUT_MS = 1_500;
/** And both together: who waited for a connection waits that much less for what is asked on it, but never less than the shortest. */
const TOTAL_TIMEOUT_MS = 1_800;
const MIN_STATEMENT_TIMEOUT_MS = 300;

/**
 * SQLSTATE classes that only arise before a commit starts. Every other error, and every lost connection, leaves open
 * whether the statement committed: an I/O error during COMMIT has been seen to be reported for a row that was there.
 */
const NOT_COMMITTED_CLASSES = new Set(['0A', '21', '22', '23', '25', '26', '2D', '34', '40', '42', '55', 'P0']);
/** Of these: about what was to be written, and not about the moment. */
const PERMANENT_ERROR_CLASSES = new Set(['22', '23']);

export interface Statement {
  readonly name: string;
  readonly text: string;
  readonly values: readonly unknown[];
  /** No caller waits for it, and giving it up costs more than waiting: however long a connection took, it has its whole time. */
  readonly hasFullTimeout?: boolean;
}

/** What a statement is run on: the pool, or the one open transaction. */
export interface Queryable {
  run<Row>(statement: Statement): Promise<readonly Row[]>;
}

/** A marker in the type of functions that write: they take the transaction they belong to. */
export interface Tx extends Queryable {
  readonly transaction: true;
}

/** `pg` knows a time for each query; its types do not. */
interface TimedQuery extends pg.QueryConfig {
  readonly query_timeout: number;
}

export class Database implements Queryable {
  readonly #pool: pg.Pool;

  constructor(url: string, options: { readonly max: number; readonly applicationName: string }) {
    this.#pool = new pg.Pool({
      connectionString: url,
      max: options.max,
      connectionTimeoutMillis: STATEMENT_TIMEOUT_MS,
      query_timeout: STATEMENT_TIMEOUT_MS,
      idleTimeoutMillis: 30_000,
      application_name: options.applicationName,
      // Pinned plans: on a table that was never analysed a batched UPDATE would otherwise scan all of it.
      options:
        '-c statement_timeout=1400 -c lock_timeout=1200 -c idle_in_transaction_session_timeout=5000 -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off',
    });
    // An idle connection that breaks is not an event: the next statement will notice and say so.
    this.#pool.on('error', () => {});
    // One that breaks in use rejects its statement *and* raises this event, which without a listener ends the process.
    this.#pool.on('connect', (client) => client.on('error', () => {}));
  }

  async run<Row>({ hasFullTimeout: patient, ...statement }: Statement): Promise<readonly Row[]> {
    const began = performance.now();
    const client = await this.#connect();
    try {
      const query_timeout = patient ? STATEMENT_TIMEOUT_MS : computeTimeoutMs(began);
      const query: TimedQuery = { ...statement, values: [...statement.values], query_timeout };
      const result = await client.query(query);
      client.release();
      return result.rows as Row[];
    } catch (error) {
      const failure = toLedgerError(error);
      client.release(failure.isCommitUnknown ? true : undefined);
      throw failure;
    }
  }

  /**
   * The one place that commits. A failed statement aborts the transaction and COMMIT then *resolves* with the tag
   * ROLLBACK: the tag is the truth, not the absence of an error.
   */
  async transaction<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    const client = await this.#connect();
    let committing = false;
    try {
      await client.query('begin');
      const tx: Tx = {
        transaction: true,
        run: async <Row>(statement: Statement) =>
          (await client.query({ ...statement, values: [...statement.values] })).rows as Row[],
      };
      const value = await work(tx);
      committing = true;
      const { command } = await client.query('commit');
      if (command !== 'COMMIT')
        throw new LedgerError(`the transaction ended in ${command}`, { isCommitUnknown: false });
      client.release();
      return value;
    } catch (error) {
      if (error instanceof GatewayError) {
        // The work itself refused: undo it on a connection that is still good.
        await client.query('rollback').then(
          () => client.release(),
          () => client.release(true),
        );
        throw error;
      }
      client.release(true);
      throw toLedgerError(error, committing);
    }
  }

  /** For tests: how many connections are checked out right now. */
  get busyConnections(): number {
    return this.#pool.totalCount - this.#pool.idleCount;
  }

  async close(): Promise<void> {
    await this.#pool.end();
  }

  async #connect(): Promise<pg.PoolClient> {
    try {
      return await this.#pool.connect();
    } catch (error) {
      throw new LedgerError(`the ledger cannot be reached: ${errorMessage(error)}`, {
        isCommitUnknown: false,
        cause: error,
      });
    }
  }
}

function computeTimeoutMs(began: number): number {
  const left = TOTAL_TIMEOUT_MS - (performance.now() - began);
  return Math.min(STATEMENT_TIMEOUT_MS, Math.max(MIN_STATEMENT_TIMEOUT_MS, Math.round(left)));
}

/** Outside a COMMIT a connection error inside a transaction is harmless: what was not committed is rolled back. */
function toLedgerError(error: unknown, uncertain = true): LedgerError {
  if (error instanceof LedgerError) return error;
  const code = error instanceof pg.DatabaseError ? (error.code ?? '') : '';
  const kind = code.slice(0, 2);
  const certain = NOT_COMMITTED_CLASSES.has(kind);
  const text = `the ledger did not take it: ${errorMessage(error)}`;
  return new LedgerError(text, {
    isCommitUnknown: uncertain && !certain,
    isRejected: certain,
    isPermanent: PERMANENT_ERROR_CLASSES.has(kind),
    cause: error,
  });
}

function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
