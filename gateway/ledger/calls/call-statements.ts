import { CHANGE_ROW_TYPE, CLAIM_ROW_TYPE } from './encode-call-batch.ts';

/**
 * The statements that claim and update calls. Each works on a whole batch and is built from two lists of CTEs, one for claims
 * and one for updates. So claims and updates that wait at the same moment go as one statement and one commit.
 *
 * Membership is tested with `in (…) is true` instead of a join. Hash joins are off on these connections (see db.ts), and a
 * nested loop over the batch would cost more than the writes.
 */

/** A part of a statement. Its rows are the parameter with this number. */
type SqlFragment = (parameter: number) => string;

/**
 * Decides which intents become calls. `admit` selects those whose conditions hold; `on conflict do nothing` lets the first claim
 * of a txn win, also against a claim that commits at the same moment. `claimed` holds the winners. The open call and the audit
 * entry are written for the winners in the same statement, so a crash leaves all three or none.
 */
function buildClaimCtes(admit: string): SqlFragment {
  return (parameter) => `intents as (
  select * from unnest($${parameter}::${CLAIM_ROW_TYPE.type}[])
), ${admit}
), claimed as (
  insert into calls (txn, agent, tool, key, identity, fingerprint, kind, state, fence, attempt, attempt_open, first_sent_at, key_lifetime_ms,
    policy_version, rule, args, request, sealed, saga, ordinal, depends_on, undo, undo_of, run, epoch)
  select txn, agent, tool, key, identity, fingerprint, kind, state, fence, (state = 'sending')::int, state = 'sending',
    case when state = 'sending' then now() end, lifetime_ms, policy_version, rule, args, request, sealed, saga, ordinal, depends_on::uuid[], undo, undo_of, run, epoch
  from admitted
  on conflict (txn) do nothing
  returning txn
), opened as (
  insert into open_calls (txn, owner, due_at, run)
  select txn, owner, now() + due_ms * interval '1 ms', run from intents where (txn in (select txn from claimed)) is true
), logged_claims as (
  insert into audit_queue (entry) select entry from intents where (txn in (select txn from claimed)) is true
)`;
}

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
 * Admits a compensation only for a call whose undo is due, and only one for each try. The update of the undone call is the
 * compare-and-set: of two processes that start the same try, the second finds `tries` raised and admits nothing.
 */
const ADMIT_UNDOS = `begun as (
  update calls c set undo_state = 'running', undo_txn = i.txn, undo_tries = c.undo_tries + 1, undo_reason = null, undo_doubt = null
  from intents i where c.txn = i.undo_of and c.undo_state = 'due' and c.undo_tries = i.tries
  returning c.txn
), admitted as (
  select i.*, null::int as ordinal from intents i join begun b on b.txn = i.undo_of`;

/**
 * Applies updates to open calls. An update applies only with the current fence and the next step number, so a former owner and a
 * late retry change nothing. Evidence applies under any fence, because it is true under any owner, but never to a settled
 * call. Row locks serialize two updates of one call; the second re-checks the conditions. The open call and the audit entry
 * change in the same statement, so a crash leaves all or nothing.
 */
const buildUpdateCtes: SqlFragment = (parameter) => `changes as (
  select * from unnest($${parameter}::${CHANGE_ROW_TYPE.type}[])
), updated as (
  update calls c set
    state = i.state,
    step = case when i.evident then c.step + 1 else i.step end,
    attempt = case when i.evident then c.attempt else i.attempt end,
    attempt_open = i.attempt_open,
    unresolved = i.unresolved,
    first_sent_at = coalesce(c.first_sent_at, case when i.attempt_open then now() end),
    -- A late success of a former owner settles the call while an attempt of the new owner is open. That attempt may still have an effect.
    unknown_since = case when i.evident and c.attempt_open and c.fence <> i.fence then now()
      else coalesce(now() - i.unknown_ms * interval '1 ms', c.unknown_since) end,
    outcome = i.outcome,
    problem = i.problem,
    detail = i.detail,
    answer = i.answer,
    evidence = case when i.evident and c.fence <> i.fence and i.evidence = 'answer' then 'late_answer' else i.evidence end,
    resolved_by = i.resolved_by,
    leaf = coalesce(i.leaf, c.leaf),
    settled_at = case when i.custody = 'close' then now() end,
    events = case when i.event is null then c.events else c.events || i.event::jsonb end,
    before = coalesce(i.before, c.before),
    undo_args = coalesce(i.undo_args, c.undo_args),
    undo_sealed = coalesce(i.undo_sealed, c.undo_sealed),
    undo_reason = coalesce(i.undo_reason, c.undo_reason),
    attempt_detail = i.attempt_detail,
    disproved_by = i.disproved_by,
    -- A new doubt answers the retry that a person asked for.
    retry_requested = c.retry_requested and not (i.state = 'in_doubt' and i.custody = 'park' and i.event is not null)
  from changes i
  where c.txn = i.txn and c.settled_at is null and (i.evident or (c.fence = i.fence and c.step = i.step - 1))
    -- A recalled step opens no new attempt, except to resolve an attempt whose outcome is unknown.
    and not (c.recalled and i.attempt > c.attempt and i.unresolved = 0)
    -- A fenced idempotent call opens no new attempt at all: a repeat could overwrite a write of the successor.
    and not (c.fenced and c.kind = 'idempotent' and i.attempt > c.attempt)
  returning c.txn, i.custody, i.due_ms, i.entry
), closed as (
  delete from open_calls o using updated u where u.txn = o.txn and u.custody = 'close'
), parked as (
  update open_calls o set owner = null, due_at = now() + u.due_ms * interval '1 ms' from updated u where u.txn = o.txn and u.custody = 'park'
), logged_changes as (
  insert into audit_queue (entry) select entry from updated
)`;

/**
 * The updates that hold: those that this statement applied, and those that an earlier try of the same statement applied. A late
 * success may have used the number of an update. The call is then settled with another leaf, and the update does not hold.
 */
const UPDATES_IN_FORCE = `select txn from updated
union all
select c.txn from calls c join changes i on c.txn = i.txn where not i.evident and c.fence = i.fence and c.step = i.step
  and (c.settled_at is null or c.leaf = i.leaf)`;

/** The txns as one text: reading one row for each would cost more than finding them. */
const CLAIMED_TXNS = `(select string_agg(txn::text, ' ') from claimed)`;
const UPDATED_TXNS = `(select string_agg(txn::text, ' ') from (${UPDATES_IN_FORCE}) as found)`;

/** The txns that were claimed and updated, separated by spaces. */
export interface WriteResult {
  readonly claimed: string | null;
  readonly updated: string | null;
}

const buildClaimStatement = (name: string, admit: string) => ({
  name,
  text: `with ${buildClaimCtes(admit)(1)}\nselect ${CLAIMED_TXNS} as claimed, null as updated`,
});
/** Claims calls without run, saga or undone step. */
export const CLAIM_CALLS = buildClaimStatement('claim', ADMIT_ALL);
/** Claims calls of a run, and steps of a saga. */
export const CLAIM_IN_RUN_OR_SAGA = buildClaimStatement('claim-bound', ADMIT_IN_RUN_OR_SAGA);
/** Claims compensations. */
export const CLAIM_UNDOS = buildClaimStatement('claim-undos', ADMIT_UNDOS);
/** Updates open calls. */
export const UPDATE_CALLS = {
  name: 'advance',
  text: `with ${buildUpdateCtes(1)}\nselect null as claimed, ${UPDATED_TXNS} as updated`,
};
/** Claims calls (parameter 1) and updates others (parameter 2). */
export const CLAIM_AND_UPDATE = {
  name: 'claim-and-advance',
  text: `with ${buildClaimCtes(ADMIT_ALL)(1)}, ${buildUpdateCtes(2)}\nselect ${CLAIMED_TXNS} as claimed, ${UPDATED_TXNS} as updated`,
};
