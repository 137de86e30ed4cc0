/**
 * The two statements of a call's way, each for a whole batch.
 *
 * A claim inserts what `admitted` lets through. Whoever is not admitted, or there already, is not among the txns returned.
 */
export function claimText(admit: string): string {
  return `
with incoming as (
  select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[], $9::uuid[],
    $10::float8[], $11::float8[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bytea[], $17::text[], $18::int[],
    $19::uuid[], $20::text[], $21::text[], $22::uuid[], $23::int[], $24::int[])
    as t(txn, agent, tool, key, identity, fingerprint, kind, state, owner, due_ms, lifetime_ms, policy_version, rule, args, request, sealed, entry, fence,
      saga, depends_on, undo, undo_of, tries, place)
), ${admit}
), claimed as (
  insert into calls (txn, agent, tool, key, identity, fingerprint, kind, state, fence, attempt, attempt_open, first_sent_at, key_lifetime_ms,
    policy_version, rule, args, request, sealed, saga, ordinal, depends_on, undo, undo_of)
  select txn, agent, tool, key, identity, fingerprint, kind, state, fence, (state = 'sending')::int, state = 'sending',
    case when state = 'sending' then now() end, lifetime_ms, policy_version, rule, args, request, sealed, saga, ordinal, depends_on::uuid[], undo, undo_of
  from admitted
  on conflict (txn) do nothing
  returning txn
), opened as (
  insert into open_calls (txn, owner, due_at)
  select i.txn, i.owner, now() + i.due_ms * interval '1 ms' from incoming i join claimed using (txn)
), logged as (
  insert into audit_queue (entry) select i.entry from incoming i join claimed using (txn)
)
select txn from claimed`;
}

export const ADMIT_ALL = 'admitted as (select i.*, null::int as ordinal from incoming i';

/**
 * Steps: only of an open saga of the same agent, whose row is locked until the claim is committed. So a rollback either
 * sees the step or the step sees the rollback. Sagas are locked in order of their ids: two batches never wait in a circle.
 */
export const ADMIT_STEPS = `wanted as (
  select saga, agent, count(*)::int as n from incoming group by saga, agent
), locked as materialized (
  select s.id from sagas s where s.id in (select saga from wanted) order by s.id for update
), numbered as (
  update sagas s set steps = s.steps + w.n from wanted w
  where s.id = w.saga and s.agent = w.agent and s.state = 'open' and (s.expires_at is null or s.expires_at > now())
    and (select count(*) from locked) >= 0
  returning s.id, s.steps - w.n as before
), admitted as (
  select i.*, (n.before + row_number() over (partition by i.saga order by i.place))::int as ordinal
  from incoming i join numbered n on n.id = i.saga`;

/** Compensations: only of a call that is due to be undone, and only one for each try. */
export const ADMIT_UNDOS = `begun as (
  update calls c set undo_state = 'running', undo_txn = i.txn, undo_tries = c.undo_tries + 1, undo_reason = null
  from incoming i where c.txn = i.undo_of and c.undo_state = 'due' and c.undo_tries = i.tries
  returning c.txn
), admitted as (
  select i.*, null::int as ordinal from incoming i join begun b on b.txn = i.undo_of`;

/** Applied to calls that are still open; also answers a change that was applied before and asked for again. */
export const ADVANCE = `
with incoming as (
  select * from unnest($1::uuid[], $2::int[], $3::bool[], $4::text[], $5::int[], $6::bool[], $7::int[], $8::float8[], $9::text[],
    $10::float8[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::bytea[], $18::text[], $19::text[], $20::int[],
    $21::text[], $22::text[], $23::bytea[], $24::text[])
    as t(txn, fence, evident, state, attempt, attempt_open, unresolved, unknown_ms, custody, due_ms, outcome, problem, detail,
      answer, evidence, resolved_by, leaf, event, entry, step, before, undo_args, undo_sealed, undo_reason)
), moved as (
  update calls c set
    state = i.state,
    step = case when i.evident then c.step + 1 else i.step end,
    attempt = case when i.evident then c.attempt else i.attempt end,
    attempt_open = i.attempt_open,
    unresolved = i.unresolved,
    first_sent_at = coalesce(c.first_sent_at, case when i.attempt_open then now() end),
    unknown_since = coalesce(now() - i.unknown_ms * interval '1 ms', c.unknown_since),
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
  from incoming i
  where c.txn = i.txn and c.settled_at is null and (i.evident or (c.fence = i.fence and c.step = i.step - 1))
    -- Of a recalled step nothing more is sent, except to find out about what may have happened already.
    and not (c.recalled and i.attempt > c.attempt and i.unresolved = 0)
  returning c.txn, i.custody, i.due_ms, i.entry
), closed as (
  delete from open_calls o using moved m where m.txn = o.txn and m.custody = 'close'
), parked as (
  update open_calls o set owner = null, due_at = now() + m.due_ms * interval '1 ms' from moved m where m.txn = o.txn and m.custody = 'park'
), logged as (
  insert into audit_queue (entry) select entry from moved
)
select txn from moved
union all
select c.txn from calls c join incoming i on c.txn = i.txn where not i.evident and c.fence = i.fence and c.step = i.step`;
