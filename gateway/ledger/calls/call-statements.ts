import { CLAIM_ROW, SETTLEMENT_ROW, UPDATE_ROW } from './call-batches.ts';
import {
  type ColumnTable,
  INTENT_COLUMNS,
  KEPT_COLUMNS,
  OPEN_COLUMNS,
  SETTLEMENT_COLUMNS,
  UNDO_COLUMNS,
} from './call-columns.ts';

/**
 * The statements that claim, update and end calls. Each works on a whole batch and is built from lists of CTEs, one for each
 * kind of row. So rows that wait at the same moment go as one statement and one commit.
 *
 * Membership is tested with `in (…) is true` instead of a join. Hash joins are off on these connections (see db.ts), and a
 * nested loop over the batch would cost more than the writes.
 */

type Column = ColumnTable[string];

const joinColumns = (columns: ColumnTable, build: (column: Column) => string, separator = ', ') =>
  Object.values(columns).map(build).join(separator);
/** The value of a column in a row of the batch. */
const toValue = ({ column, row = column, cast }: Column) => (cast === undefined ? row : `${row}::${cast}`);

const listColumns = (columns: ColumnTable) => joinColumns(columns, ({ column }) => column);
const listValues = (columns: ColumnTable) => joinColumns(columns, toValue);
/** Sets the columns of `o` to the values of the row `i`. */
const listAssignments = (columns: ColumnTable) =>
  joinColumns(columns, (column) => `${column.column} = ${column.set ?? `i.${toValue(column)}`}`, ',\n    ');

/**
 * Decides which intents become calls. `admit` selects those whose conditions hold; `on conflict do nothing` lets the first claim
 * of a txn win, also against a claim that commits at the same moment. `claimed` holds the winners. The open call and the audit
 * entry are written for the winners in the same statement, so a crash leaves all three or none.
 */
const buildClaimCtes = (admit: string, parameter: number) => `intents as (
  select * from unnest($${parameter}::${CLAIM_ROW.type}[])
), ${admit}
), claimed as (
  insert into calls (${listColumns(INTENT_COLUMNS)}, ordinal)
  select ${listValues(INTENT_COLUMNS)}, ordinal from admitted
  on conflict (txn) do nothing
  returning txn
), opened as (
  insert into open_calls (txn, owner, due_at, run, state, fence, attempt, attempt_open, first_sent_at)
  select txn, owner, now() + due_ms * interval '1 ms', run, state::open_state, fence, (state = 'sending')::int, state = 'sending',
    case when state = 'sending' then now() end
  from intents where (txn in (select txn from claimed)) is true
), logged_claims as (
  insert into audit_queue (entry) select entry from intents where (txn in (select txn from claimed)) is true
)`;

/** A key that is bound as an alias of a shared call cannot become a call of its own. */
const NOT_ALIASED = 'not exists (select 1 from aliases a where a.alias = i.txn)';
const ADMIT_ALL = `admitted as (select i.*, null::int as ordinal from intents i where ${NOT_ALIASED}`;

/**
 * Admits calls of a run only for the agent and current epoch of the run, and steps only into an open saga of the same agent.
 * Numbers the steps in order of arrival.
 *
 * Runs and sagas stay locked until the claim commits. So a run takeover or a rollback either waits and then sees the call, or
 * came first and refuses it. Runs are locked before sagas, each in order of id, so two batches never wait in a circle. The lock
 * is `for update`, not `for share`: new shared locks could overtake a waiting takeover for ever. The `count(*) >= 0` conditions
 * are always true; they make PostgreSQL take the locks first.
 */
const ADMIT_IN_RUN_OR_SAGA = `locked_runs as materialized (
  select r.id, r.agent, r.epoch from runs r where r.id in (select run from intents) and r.ended_at is null order by r.id for update
), eligible as (
  select i.* from intents i
  where (i.run is null or exists (select 1 from locked_runs r where r.id = i.run and r.agent = i.agent and r.epoch = i.epoch))
    and (select count(*) from locked_runs) >= 0 and ${NOT_ALIASED}
), new_steps as (
  select saga, agent, count(*)::int as n from eligible where saga is not null group by saga, agent
), locked_sagas as materialized (
  select s.id from sagas s where s.id in (select saga from new_steps) order by s.id for update
), numbered as (
  update sagas s set steps = s.steps + n.n from new_steps n
  where s.id = n.saga and s.agent = n.agent and s.state = 'open' and (s.expires_at is null or s.expires_at > now())
    and (select count(*) from locked_sagas) >= 0
  returning s.id, s.agent, s.steps - n.n as before
), admitted as (
  select i.*, case when i.saga is not null then (n.before + row_number() over (partition by i.saga order by i.place))::int end as ordinal
  from eligible i left join numbered n on n.id = i.saga and n.agent = i.agent
  where i.saga is null or n.id is not null`;

/**
 * Admits a compensation only for a call whose undo is due, and only one for each try. The update of the undo is the
 * compare-and-set: of two processes that start the same try, the second finds `tries` raised and admits nothing.
 */
const ADMIT_UNDOS = `begun as (
  update undos u set state = 'running', undo_txn = i.txn, tries = u.tries + 1, reason = null, doubt = null
  from intents i where u.txn = i.undo_of and u.state = 'due' and u.tries = i.tries
  returning u.txn
), admitted as (
  select i.*, null::int as ordinal from intents i join begun b on b.txn = i.undo_of`;

/** Stores what the rows of `source` say about undos: the observed state, the arguments, or the reason why there are none. */
const buildUndoCte = (name: string, source: string) => `${name} as (
  insert into undos as u (txn, ${listColumns(UNDO_COLUMNS)})
  select txn, ${listValues(UNDO_COLUMNS)} from ${source}
  where undo_before is not null or undo_args is not null or undo_sealed is not null or undo_reason is not null
  on conflict (txn) do update set ${joinColumns(UNDO_COLUMNS, ({ column }) => `${column} = coalesce(excluded.${column}, u.${column})`)}
)`;

/** The rows of a batch: `changes` update open calls, `endings` end them. */
const buildChanges = (parameter: number) => `changes as (
  select * from unnest($${parameter}::${UPDATE_ROW.type}[])
)`;
const buildEndings = (parameter: number) => `endings as (
  select * from unnest($${parameter}::${SETTLEMENT_ROW.type}[])
)`;

/**
 * Locks the open rows of a batch that both updates and ends calls, in order of txn. Without this, the statement would lock all
 * updated rows before all ended ones, and could wait in a circle with a rollback or a takeover, which lock by txn.
 */
const ROW_LOCKS = `row_locks as materialized (
  select o.txn from open_calls o
  where o.txn in (select txn from changes union all select txn from endings) order by o.txn for update
)`;
/** Always true; makes PostgreSQL take the locks first. */
const AFTER_ROW_LOCKS = ' and (select count(*) from row_locks) >= 0';

/**
 * Applies updates to open calls. An update applies only with the current fence and the next number, so a former owner and a
 * late retry change nothing. The row lock serializes two updates of one call; the second checks the conditions again. The audit
 * entry is written in the same statement, so a crash leaves both or none.
 */
const buildUpdateCtes = (gate: string) => `updated as (
  update open_calls o set
    update_number = i.update_number,
    ${listAssignments(OPEN_COLUMNS)},
    first_sent_at = coalesce(o.first_sent_at, case when i.attempt_open then now() end),
    -- A new doubt answers the retry that a person asked for.
    retry_requested = o.retry_requested and not (i.state = 'in_doubt' and i.parked and i.event is not null),
    owner = case when not i.parked then o.owner end,
    due_at = case when i.parked then now() + i.due_ms * interval '1 ms' else o.due_at end
  from changes i
  where o.txn = i.txn and o.fence = i.fence and o.update_number = i.update_number - 1
    -- A recalled step opens no new attempt, except to resolve an attempt whose outcome is unknown.
    and not (o.recalled and i.attempt > o.attempt and i.unresolved = 0)
    -- A fenced idempotent call opens no new attempt at all: a repeat could overwrite a write of the successor.
    and not (o.fenced and i.attempt > o.attempt and (select c.kind = 'idempotent' from calls c where c.txn = o.txn))${gate}
  returning i.*
), described as (
  insert into call_events (txn, event) select txn, event::jsonb from updated where event is not null
), ${buildUndoCte('observed', 'updated')}, logged_updates as (
  insert into audit_queue (entry) select entry from updated
)`;

/**
 * Ends open calls: deletes the open row and writes the settlement. Evidence ends a call under any fence, because it is true under
 * any owner; otherwise the fence and the number must be current. A call without an open row has ended already and keeps its
 * settlement. All of this is one statement, so a crash leaves the call open or ended, never both.
 */
const buildSettlementCtes = (hasUndos: boolean, gate: string) => `ended as (
  delete from open_calls o using endings i
  where o.txn = i.txn and (i.evident or (o.fence = i.fence and o.update_number = i.update_number - 1))${gate}
  returning i.txn, i.state, i.outcome, i.problem, i.detail, i.answer, i.resolved_by, i.leaf,
    ${joinColumns(UNDO_COLUMNS, ({ row }) => `i.${row}`)}, i.entry, o.first_sent_at, o.lock_token, o.attempt, o.owner_deaths, o.retried_by,
    case when i.evident and o.fence <> i.fence and i.evidence = 'answer' then 'late_answer' else i.evidence end as evidence,
    -- A late success of a former owner ends the call while an attempt of the new owner is open. That attempt may still have an effect.
    case when i.evident and o.fence <> i.fence and o.attempt_open then now()
      else coalesce(now() - i.unknown_ms * interval '1 ms', o.unknown_since) end as unknown_since
), settled as (
  insert into settlements (txn, ${listColumns(SETTLEMENT_COLUMNS)}, ${KEPT_COLUMNS})
  select txn, ${listValues(SETTLEMENT_COLUMNS)}, ${KEPT_COLUMNS} from ended
)${hasUndos ? `, ${buildUndoCte('undoable', 'ended')}` : ''}, logged_settlements as (
  insert into audit_queue (entry) select entry from ended
)`;

/**
 * The updates and settlements that hold: those that this statement wrote, and those that an earlier try of the same statement wrote.
 * A settlement is recognised by its leaf. The counts avoid the second look in the common case.
 */
const UPDATES_IN_FORCE = `select txn from updated
union all
select o.txn from open_calls o join changes i on o.txn = i.txn
where (select count(*) from updated) < (select count(*) from changes) and o.fence = i.fence and o.update_number = i.update_number`;
const SETTLEMENTS_IN_FORCE = `select txn from ended
union all
select r.txn from settlements r join endings i on r.txn = i.txn
where (select count(*) from ended) < (select count(*) from endings) and r.leaf = i.leaf`;

/** The txns as one text: reading one row for each would cost more than finding them. */
const joinTxns = (query: string) => `(select string_agg(txn::text, ' ') from (${query}) found)`;

/** The txns that were claimed, updated and ended, each separated by spaces. */
export interface WriteResult {
  readonly claimed: string | null;
  readonly updated: string | null;
  readonly ended: string | null;
}

const buildClaimStatement = (name: string, admit: string) => ({
  name,
  text: `with ${buildClaimCtes(admit, 1)}\nselect ${joinTxns('select txn from claimed')} as claimed`,
});
/** Claims calls without run, saga or undone step, alone in their transaction. */
export const CLAIM_CALLS = buildClaimStatement('claim', ADMIT_ALL);
/** Claims calls of a run, and steps of a saga. */
export const CLAIM_IN_RUN_OR_SAGA = buildClaimStatement('claim-bound', ADMIT_IN_RUN_OR_SAGA);
/** Claims compensations. */
export const CLAIM_UNDOS = buildClaimStatement('claim-undos', ADMIT_UNDOS);

/** The kinds of rows in a batch. */
export interface BatchKinds {
  readonly hasClaims: boolean;
  readonly hasUpdates: boolean;
  readonly hasSettlements: boolean;
  /** Some settlement says something about an undo. Most do not, and need not touch `undos`. */
  readonly hasUndos: boolean;
}

const writeStatements = new Map<string, { readonly name: string; readonly text: string }>();

/** The statement for a batch, with one parameter for each kind of rows, in this order: claims, updates, settlements. */
export function getWriteStatement(kinds: BatchKinds): { readonly name: string; readonly text: string } {
  const { hasClaims, hasUpdates, hasSettlements, hasUndos } = kinds;
  const parts = [hasClaims && 'claims', hasUpdates && 'updates', hasSettlements && 'settlements', hasUndos && 'undos'];
  const name = `write-${parts.filter(Boolean).join('-')}`;
  let statement = writeStatements.get(name);
  if (statement === undefined) {
    statement = { name, text: buildWriteText(kinds) };
    writeStatements.set(name, statement);
  }
  return statement;
}

function buildWriteText({ hasClaims, hasUpdates, hasSettlements, hasUndos }: BatchKinds): string {
  const ctes: string[] = [];
  if (hasClaims) ctes.push(buildClaimCtes(ADMIT_ALL, 1));
  if (hasUpdates) ctes.push(buildChanges(ctes.length + 1));
  if (hasSettlements) ctes.push(buildEndings(ctes.length + 1));
  const gate = hasUpdates && hasSettlements ? AFTER_ROW_LOCKS : '';
  if (gate !== '') ctes.push(ROW_LOCKS);
  if (hasUpdates) ctes.push(buildUpdateCtes(gate));
  if (hasSettlements) ctes.push(buildSettlementCtes(hasUndos, gate));
  const results = [
    ...(hasClaims ? [`${joinTxns('select txn from claimed')} as claimed`] : []),
    ...(hasUpdates ? [`${joinTxns(UPDATES_IN_FORCE)} as updated`] : []),
    ...(hasSettlements ? [`${joinTxns(SETTLEMENTS_IN_FORCE)} as ended`] : []),
  ];
  return `with ${ctes.join(', ')}\nselect ${results.join(', ')}`;
}
