import { randomBytes, randomUUID } from 'node:crypto';
import type { TestDatabase } from './database.ts';

/** Rows of calls as the ledger stores them, for tests that read or write them without the gateway. */

type Columns = Readonly<Record<string, unknown>>;

/** Every call with its state, whether it is open or has ended. Use with `from ${CALLS_WITH_STATE}`. */
export const CALLS_WITH_STATE = `(select c.*, coalesce(r.state::text, o.state::text) as state
  from calls c left join open_calls o on o.txn = c.txn left join settlements r on r.txn = c.txn) calls`;

/** The state of a call; undefined if the ledger does not know the call. */
export async function readCallState(database: TestDatabase, txn: string): Promise<string | undefined> {
  const [row] = await database.query<{ state: string }>(`select state from ${CALLS_WITH_STATE} where txn = $1`, [txn]);
  return row?.state;
}

/** Every row of the tables of calls, as text. */
export async function dumpCallRows(database: TestDatabase): Promise<string> {
  const tables = ['calls', 'open_calls', 'settlements', 'undos', 'call_events'];
  const rows = await Promise.all(
    tables.map((table) => database.query<{ row: string }>(`select t::text as row from ${table} t`)),
  );
  return rows
    .flat()
    .map(({ row }) => row)
    .join('\n');
}

export async function insertRow(database: TestDatabase, table: string, columns: Columns): Promise<void> {
  const names = Object.keys(columns);
  await database.query(
    `insert into ${table} (${names.join(', ')}) values (${names.map((_, i) => `$${i + 1}`).join(', ')})`,
    Object.values(columns),
  );
}

/** Inserts the intent of a call, which then is neither open nor ended. */
export async function insertIntent(database: TestDatabase, columns: Columns = {}): Promise<string> {
  const txn = randomUUID();
  const intent = { agent: 'a', tool: 't', identity: 'random', fingerprint: randomBytes(32), kind: 'none' };
  await insertRow(database, 'calls', { txn, ...intent, policy_version: 'v', ...columns });
  return txn;
}

/** Inserts an open call. `columns` are those of `open_calls`. */
export async function insertOpenCall(database: TestDatabase, columns: Columns = {}): Promise<string> {
  const txn = await insertIntent(database);
  const attempt = ['held', 'ready'].includes(String(columns['state'])) ? 0 : 1;
  await insertRow(database, 'open_calls', { txn, state: 'sending', fence: 1, attempt, ...columns });
  return txn;
}

/** Inserts a call that has ended. `columns` are those of `settlements`. */
export async function insertEndedCall(database: TestDatabase, columns: Columns = {}): Promise<string> {
  const txn = await insertIntent(database);
  await insertRow(database, 'settlements', {
    txn,
    ...buildOutcome(String(columns['state'] ?? 'succeeded')),
    ...columns,
  });
  return txn;
}

/** Ends an open call in one statement. `columns` are those of `settlements`. Returns whether the call was open. */
export async function endOpenCall(database: TestDatabase, txn: string, columns: Columns = {}): Promise<boolean> {
  const { attempt: _, ...outcome } = buildOutcome(String(columns['state'] ?? 'succeeded'));
  const ending: Columns = { ...outcome, ...columns };
  const names = Object.keys(ending);
  const ended = await database.query(
    `with ended as (delete from open_calls where txn = $1 returning txn, attempt)
      insert into settlements (txn, attempt, ${names.join(', ')})
      select txn, attempt, ${names.map((name, i) => `$${i + 2}${CASTS[name] ?? ''}`).join(', ')} from ended returning txn`,
    [txn, ...Object.values(ending)],
  );
  return ended.length === 1;
}

const CASTS: Readonly<Record<string, string>> = {
  state: '::final_state',
  evidence: '::call_evidence',
  settled_at: '::timestamptz',
};

/** The columns that an outcome of this state needs. */
function buildOutcome(state: string) {
  const wasSent = ['succeeded', 'failed'].includes(state);
  const problem = state === 'succeeded' ? null : 'tool_failed';
  return { state, attempt: wasSent ? 1 : 0, problem, evidence: 'answer', outcome: state };
}
