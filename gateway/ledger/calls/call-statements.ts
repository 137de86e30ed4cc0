import { CHANGE_ROW_TYPE, CLAIM_ROW_TYPE } from './encode-call-batch.ts';

/**
 * The statements of a call's way, each for a whole batch, put together from two lists of CTEs: claims and advances. What
 * waits in a process goes as one statement and one commit, whichever of the two it is.
 *
 * Rows are told apart by `in (…) is true`, not by a join: joins by hashing are off on these connections (see db.ts), and
 * comparing each row of a batch with each other one would cost more than writing it.
 */

/** A part of a statement whose rows are the parameter of this number. */
type SqlFragment = (parameter: number) => string;

/** Inserts what `admit` lets through. Whoever is not admitted, or there already, is not in `claimed`. */
function buildClaimCtes(admit: string): SqlFragment {
  return (parameter) => `wish as (
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
  select txn, owner, now() + due_ms * interval '1 ms', run from wish where (txn in (select txn from claimed)) is true
), logged_claims as (
  insert into audit_queue (entry) select entry from wish where (txn in (select txn from claimed)) is true
)`;
}

/** A key that came with a shared wish stands for that call: it cannot become one of its own. */
const NOT_ALIASED = 'not exists (select 1 from aliases a where a.alias = w.txn)';
const ADMIT_ALL = `admitted as (select w.*, null::int as ordinal from wish w where ${NOT_ALIASED}`;

/**
 * Calls of a run: only of its own agent, and only in its current epoch. Steps: only of an open saga of the same agent. The rows
 * of both are locked until the claim is committed, so whoever takes the run over, or rolls the saga back, either sees the
 * call or is seen by it. Runs before sagas, each in order of their ids: two batches never wait in a circle. For update, not
 * for share: those who share a row let others in before one who waits to change it, and a take-over could wait for ever.
 */
const ADMIT_BOUND = `held_runs as materialized (
  select r.id, r.agent, r.epoch from runs r where r.id in (select run from wish) and r.ended_at is null order by r.id for update
), fit as (
  select w.* from wish w
  where (w.run is null or exists (select 1 from held_runs r where r.id = w.run and r.agent = w.agent and r.epoch = w.epoch))
    and (select count(*) from held_runs) >= 0 and ${NOT_ALIASED}
), wanted as (
  select saga, agent, count(*)::int as n from fit where saga is not null group by saga, agent
), locked as materialized (
  select s.id from sagas s where s.id in (select saga from wanted) order by s.id for update
), numbered as (
  update sagas s set steps = s.steps + w.n from wanted w
  where s.id = w.saga and s.agent = w.agent and s.state = 'open' and (s.expires_at is null or s.expires_at > now())
    and (select count(*) from locked) >= 0
  returning s.id, s.agent, s.steps - w.n as before
), admitted as (
  select w.*, case when w.saga is not null then (n.before + row_number() over (partition by w.saga order by w.place))::int end as ordinal
  from fit w left join numbered n on n.id = w.saga and n.agent = w.agent
  where w.saga is null or n.id is not null`;

/** Compensations: only of a call that is due to be undone, and only one for each try. */
const ADMIT_UNDOS = `begun as (
  update calls c set undo_state = 'running', undo_txn = w.txn, undo_tries = c.undo_tries + 1, undo_reason = null
  from wish w where c.txn = w.undo_of and c.undo_state = 'due' and c.undo_tries = w.tries
  returning c.txn
), admitted as (
  select w.*, null::int as ordinal from wish w join begun b on b.txn = w.undo_of`;

/** Changes calls that are still open. */
const buildUpdateCtes: SqlFragment = (parameter) => `change as (
  select * from unnest($${parameter}::${CHANGE_ROW_TYPE.type}[])
), moved as (
  update calls c set
    state = i.state,
    step = case when i.evident then c.step + 1 else i.step end,
    attempt = case when i.evident then c.attempt else i.attempt end,
    attempt_open = i.attempt_open,
    unresolved = i.unresolved,
    first_sent_at = coalesce(c.first_sent_at, case when i.attempt_open then now() end),
    -- A late success while somebody else's attempt is on the wire: that one may still arrive, and nobody will hear of it.
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
    undo_reason = coalesce(i.undo_reason, c.undo_reason)
  from change i
  where c.txn = i.txn and c.settled_at is null and (i.evident or (c.fence = i.fence and c.step = i.step - 1))
    -- Of a recalled step nothing more is sent, except to find out about what may have happened already.
    and not (c.recalled and i.attempt > c.attempt and i.unresolved = 0)
    -- Of a fenced one not even that, where a repeat could overwrite what the successor wrote.
    and not (c.fenced and c.kind = 'idempotent' and i.attempt > c.attempt)
  returning c.txn, i.custody, i.due_ms, i.entry
), closed as (
  delete from open_calls o using moved m where m.txn = o.txn and m.custody = 'close'
), parked as (
  update open_calls o set owner = null, due_at = now() + m.due_ms * interval '1 ms' from moved m where m.txn = o.txn and m.custody = 'park'
), logged_changes as (
  insert into audit_queue (entry) select entry from moved
)`;

/**
 * Also answers a change that was applied before and is asked for again. Not one whose number a late success took: then the
 * call is final, by another leaf.
 */
const UPDATED_ROWS = `select txn from moved
union all
select c.txn from calls c join change i on c.txn = i.txn where not i.evident and c.fence = i.fence and c.step = i.step
  and (c.settled_at is null or c.leaf = i.leaf)`;

/** The txns as one text: a row for each would cost more to read than to find. */
const CLAIMED_TXNS = `(select string_agg(txn::text, ' ') from claimed)`;
const UPDATED_TXNS = `(select string_agg(txn::text, ' ') from (${UPDATED_ROWS}) as found)`;

/** What each of these answers: the txns that were claimed, and those that were changed, with a space between two. */
export interface WriteResult {
  readonly claimed: string | null;
  readonly moved: string | null;
}

const buildClaimStatement = (name: string, admit: string) => ({
  name,
  text: `with ${buildClaimCtes(admit)(1)}\nselect ${CLAIMED_TXNS} as claimed, null as moved`,
});
export const CLAIM_CALLS = buildClaimStatement('claim', ADMIT_ALL);
export const CLAIM_BOUND = buildClaimStatement('claim-bound', ADMIT_BOUND);
export const CLAIM_UNDOS = buildClaimStatement('claim-undos', ADMIT_UNDOS);
export const UPDATE_CALLS = {
  name: 'advance',
  text: `with ${buildUpdateCtes(1)}\nselect null as claimed, ${UPDATED_TXNS} as moved`,
};
/** Claims first, then changes. */
export const CLAIM_AND_UPDATE = {
  name: 'claim-and-advance',
  text: `with ${buildClaimCtes(ADMIT_ALL)(1)}, ${buildUpdateCtes(2)}\nselect ${CLAIMED_TXNS} as claimed, ${UPDATED_TXNS} as moved`,
};
