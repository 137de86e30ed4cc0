import { KEPT_COLUMNS } from './call-columns.ts';

/** The settlement that a statement writes without an answer of an upstream, as SQL expressions over the row of `ended`. */
interface SettlementSql {
  readonly state: string;
  readonly outcome: string;
  readonly problem: string;
  readonly detail: string;
  readonly evidence: string;
  readonly leaf: string;
  readonly resolvedBy?: string;
  readonly answer?: string;
}

const KEPT_OF_OPEN_ROW = KEPT_COLUMNS.split(', ')
  .map((column) => `o.${column}`)
  .join(', ');

/**
 * The CTEs that end calls from outside of their attempts: a decision of a person, an expiry, a rollback, a takeover of a run.
 * They delete the open rows that `condition` selects and write the settlements in the same statement, so that a crash leaves each
 * call open or ended. `returning` adds columns of the open row, or of the tables in `using`, to the rows of `ended`.
 */
export function buildEndCtes(
  condition: string,
  settlement: SettlementSql,
  { using, returning }: { readonly using?: string; readonly returning?: string } = {},
): string {
  return `ended as (
        delete from open_calls o${using === undefined ? '' : ` using ${using}`} where ${condition}
        returning o.txn, ${KEPT_OF_OPEN_ROW}${returning === undefined ? '' : `, ${returning}`}
      ), settled as (
        insert into settlements (txn, state, outcome, problem, detail, evidence, leaf, resolved_by, answer, ${KEPT_COLUMNS})
        select txn, (${settlement.state})::final_state, ${settlement.outcome}, ${settlement.problem}, ${settlement.detail}, ${settlement.evidence}, ${settlement.leaf},
          ${settlement.resolvedBy ?? 'null'}, ${settlement.answer ?? 'null'}, ${KEPT_COLUMNS}
        from ended
      )`;
}
