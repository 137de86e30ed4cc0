import type { CompensationStatus, SagaStep, UndoState } from '../../domain/sagas/saga.ts';
import type { Queryable } from '../db.ts';

/** `outline` tells only whether an undo has arguments, because they may be megabytes for each step. */
export type StepDetail = 'whole' | 'outline';

const STEP_DETAIL_QUERIES = {
  whole: { name: 'read-steps', args: 'd.args as undo_args' },
  outline: { name: 'outline-steps', args: `case when d.args is not null then '{}' end as undo_args` },
} as const satisfies Record<StepDetail, { name: string; args: string }>;

/**
 * Reads steps of sagas, and single calls, with everything that an undo needs. The rows are not sorted. Reads one snapshot and
 * locks nothing: every move of an undo is a compare-and-set on the state and the tries that were read here.
 */
export async function readSteps(
  db: Queryable,
  sagas: readonly string[],
  calls: readonly string[],
  detail: StepDetail = 'whole',
): Promise<readonly (SagaStep & { readonly saga: string | null })[]> {
  const { name, args } = STEP_DETAIL_QUERIES[detail];
  const rows = await db.run<StepRow>({
    name,
    text: `select ${args}, ${STEP_COLUMNS} where c.saga = any($1::uuid[]) and c.ordinal is not null
      union all select ${args}, ${STEP_COLUMNS} where c.txn = any($2::uuid[])`,
    values: [sagas, calls],
  });
  return rows.map(toSagaStep);
}

/** Finds the status in the first characters of a stored answer, such as `{"status":422,`. */
function describeAnswer(answer: string | null): string | null {
  const [, status] = /^\{"status":(\d{3})/.exec(answer ?? '') ?? [];
  return status === undefined ? null : `the upstream answered ${status}`;
}

interface StepRow {
  saga: string | null;
  txn: string;
  tool: string;
  kind: SagaStep['kind'];
  state: SagaStep['state'];
  outcome: string | null;
  ordinal: number | null;
  depends_on: string[] | null;
  pursued: boolean;
  ms_since_unknown: number | null;
  undo: string | null;
  undo_args: string | null;
  undo_state: UndoState;
  undo_reason: string | null;
  undo_doubt: SagaStep['undoDoubt'];
  undo_txn: string | null;
  undo_tries: number;
  undo_from: number;
  ms_since_due: number | null;
  ms_to_next_try: number | null;
  waived: boolean;
  u_state: CompensationStatus['state'] | null;
  u_problem: string | null;
  u_detail: string | null;
  /** The first characters of the answer, which hold the status. As text, because PostgreSQL's JSON refuses some answers. */
  u_answer: string | null;
  u_attempt: number | null;
  u_pursued: boolean;
  u_ms_in_doubt: number | null;
}

/** A step with the undo `d` of its call, and its compensation `u` with the outcome `ur` or the open row `uo`. */
const STEP_COLUMNS = `c.saga, c.txn, c.tool, c.kind, coalesce(r.state::text, o.state::text) as state, r.outcome, c.ordinal, c.depends_on, c.undo,
    coalesce(d.state, 'none') as undo_state, d.reason as undo_reason, d.doubt as undo_doubt, d.undo_txn, coalesce(d.tries, 0) as undo_tries,
    coalesce(d.tries_from, 0) as undo_from, coalesce(d.waived, false) as waived,
    o.owner is not null or o.due_at is not null as pursued,
    extract(epoch from now() - coalesce(r.unknown_since, o.unknown_since))::float8 * 1000 as ms_since_unknown,
    extract(epoch from now() - d.since)::float8 * 1000 as ms_since_due,
    extract(epoch from d.due_at - now())::float8 * 1000 as ms_to_next_try,
    coalesce(ur.state::text, uo.state::text) as u_state, ur.problem as u_problem, coalesce(ur.detail, uo.detail) as u_detail,
    left(ur.answer, 24) as u_answer, coalesce(ur.attempt, uo.attempt) as u_attempt,
    uo.owner is not null or uo.due_at is not null as u_pursued,
    extract(epoch from now() - coalesce(ur.unknown_since, uo.unknown_since))::float8 * 1000 as u_ms_in_doubt
  from calls c left join open_calls o on o.txn = c.txn left join settlements r on r.txn = c.txn left join undos d on d.txn = c.txn
    left join settlements ur on ur.txn = d.undo_txn left join open_calls uo on uo.txn = d.undo_txn`;

function toSagaStep(row: StepRow): SagaStep & { readonly saga: string | null } {
  return {
    saga: row.saga,
    txn: row.txn,
    tool: row.tool,
    kind: row.kind,
    state: row.state,
    outcome: row.outcome,
    ordinal: row.ordinal ?? 1,
    dependsOn: row.depends_on,
    pursued: row.pursued,
    msSinceUnknown: row.ms_since_unknown,
    undo: row.undo === null ? null : (JSON.parse(row.undo) as SagaStep['undo']),
    undoArgs: row.undo_args,
    undoState: row.undo_state,
    undoReason: row.undo_reason,
    undoDoubt: row.undo_doubt,
    undoTxn: row.undo_txn,
    undoTries: row.undo_tries,
    undoFrom: row.undo_from,
    msSinceDue: row.ms_since_due ?? 0,
    msToNextTry: row.ms_to_next_try ?? 0,
    waived: row.waived,
    compensation:
      row.u_state === null
        ? null
        : {
            state: row.u_state,
            problem: row.u_problem,
            detail: row.u_detail ?? describeAnswer(row.u_answer),
            attempt: row.u_attempt ?? 0,
            pursued: row.u_pursued,
            msInDoubt: row.u_ms_in_doubt ?? 0,
          },
  };
}
