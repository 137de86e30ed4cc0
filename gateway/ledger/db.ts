import pg from 'pg';
import { GatewayError, LedgerError } from '../domain/errors.ts';

/** A caller gets an answer within two seconds when PostgreSQL is down, so no statement and no connect may take longer. */
const STATEMENT_TIMEOUT_MS = 1_500;
/** The limit for connecting and the statement together. A long wait for a connection leaves the statement less time. */
const TOTAL_TIMEOUT_MS = 1_800;
const MIN_STATEMENT_TIMEOUT_MS = 300;

/**
 * SQLSTATE classes that arise only before a commit starts. After any other error, or a lost connection, the statement may have
 * committed: PostgreSQL was seen to report an I/O error during COMMIT for a row that was stored.
 */
const NOT_COMMITTED_CLASSES = new Set(['0A', '21', '22', '23', '25', '26', '2D', '34', '40', '42', '55', 'P0']);
/** Classes that reject the values themselves: the same statement fails again at any time. */
const PERMANENT_ERROR_CLASSES = new Set(['22', '23']);

export interface Statement {
  readonly name: string;
  readonly text: string;
  readonly values: readonly unknown[];
  /** The wait for a connection does not shorten the timeout. For statements without a waiting caller, such as a lease renewal. */
  readonly hasFullTimeout?: boolean;
}

/** Runs statements: the pool, or one open transaction. */
export interface Queryable {
  run<Row>(statement: Statement): Promise<readonly Row[]>;
}

/** Functions that must run inside a transaction take a `Tx`, so the compiler refuses the pool. */
export interface Tx extends Queryable {
  readonly transaction: true;
}

/** `pg` supports a timeout for each query, but its types lack it. */
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
      // Forces index scans: on a table that was never analysed, PostgreSQL would scan all of it for a batched UPDATE.
      options:
        '-c statement_timeout=1400 -c lock_timeout=1200 -c idle_in_transaction_session_timeout=5000 -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off',
    });
    // Ignores the loss of an idle connection: the next statement fails and reports it.
    this.#pool.on('error', () => {});
    // A connection that breaks in use rejects its statement and emits this event. Without a listener the process would end.
    this.#pool.on('connect', (client) => client.on('error', () => {}));
  }

  async run<Row>({ hasFullTimeout: patient, ...statement }: Statement): Promise<readonly Row[]> {
    const startedAt = performance.now();
    const client = await this.#connect();
    try {
      const query_timeout = patient ? STATEMENT_TIMEOUT_MS : computeTimeoutMs(startedAt);
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
   * The only code that commits a transaction. If a statement failed and `work` swallowed the error, COMMIT resolves with the
   * tag ROLLBACK. So the tag decides, not the absence of an error.
   */
  async transaction<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    const client = await this.#connect();
    let isCommitting = false;
    try {
      await client.query('begin');
      const tx: Tx = {
        transaction: true,
        run: async <Row>(statement: Statement) =>
          (await client.query({ ...statement, values: [...statement.values] })).rows as Row[],
      };
      const value = await work(tx);
      isCommitting = true;
      const { command } = await client.query('commit');
      if (command !== 'COMMIT')
        throw new LedgerError(`The transaction was not committed: PostgreSQL answered ${command}.`, {
          isCommitUnknown: false,
        });
      client.release();
      return value;
    } catch (error) {
      if (error instanceof GatewayError) {
        // `work` refused the request. The connection is intact: roll back and reuse it.
        await client.query('rollback').then(
          () => client.release(),
          () => client.release(true),
        );
        throw error;
      }
      client.release(true);
      throw toLedgerError(error, isCommitting);
    }
  }

  /** Checked-out connections; for tests. */
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
      throw new LedgerError(`Cannot connect to PostgreSQL: ${errorMessage(error)}`, {
        isCommitUnknown: false,
        cause: error,
      });
    }
  }
}

function computeTimeoutMs(startedAt: number): number {
  const left = TOTAL_TIMEOUT_MS - (performance.now() - startedAt);
  return Math.min(STATEMENT_TIMEOUT_MS, Math.max(MIN_STATEMENT_TIMEOUT_MS, Math.round(left)));
}

/** `canHaveCommitted` is false for an error before COMMIT inside a transaction: PostgreSQL rolls that transaction back. */
function toLedgerError(error: unknown, canHaveCommitted = true): LedgerError {
  if (error instanceof LedgerError) return error;
  const code = error instanceof pg.DatabaseError ? (error.code ?? '') : '';
  const sqlClass = code.slice(0, 2);
  const isRejected = NOT_COMMITTED_CLASSES.has(sqlClass);
  const text = `The statement failed in PostgreSQL: ${errorMessage(error)}`;
  return new LedgerError(text, {
    isCommitUnknown: canHaveCommitted && !isRejected,
    isRejected,
    isPermanent: PERMANENT_ERROR_CLASSES.has(sqlClass),
    cause: error,
  });
}

function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
