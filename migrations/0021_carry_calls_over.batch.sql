-- Carries calls over to the tables of 0020, oldest first. `carried_over` holds the last one, in the transaction of its batch.
-- total: select count(*) from calls_before_split
with next as materialized (
  select c.* from calls_before_split c
  where (c.created_at, c.txn) > (select created_at, txn from carried_over)
  order by c.created_at, c.txn limit 5000
), intents as (
  insert into calls (txn, created_at, key_lifetime_ms, erased_at, kind, identity, ordinal, epoch, saga, run, undo_of, agent, tool, fingerprint,
    policy_version, rule, key, depends_on, args, request, sealed, undo)
  select txn, created_at, key_lifetime_ms, erased_at, kind::call_kind, identity::call_identity, ordinal, epoch, saga, run, undo_of, agent, tool,
    fingerprint, policy_version, rule, key, depends_on, args, request, sealed, undo
  from next order by created_at, txn
), opened as (
  insert into open_calls (txn, owner, due_at, run, state, fence, update_number, attempt, unresolved, round_from, owner_deaths, attempt_open, recalled,
    fenced, retry_requested, round_at, first_sent_at, unknown_since, lock_token, detail, attempt_detail, disproved_by, retried_by, former_owners)
  select n.txn, o.owner, o.due_at, o.run, n.state::open_state, n.fence, n.step, n.attempt, n.unresolved, n.round_from, n.owner_deaths, n.attempt_open,
    n.recalled, n.fenced, n.retry_requested, n.round_at, n.first_sent_at, n.unknown_since, n.lock_token, n.detail, n.attempt_detail, n.disproved_by,
    case when n.verdict = 'retry' then coalesce(n.resolved_by, '') end,
    (select array_agg((e ->> 'from')::uuid) from jsonb_array_elements(n.events) e where e ->> 'what' = 'taken_over')
  from next n left join open_calls_before_split o on o.txn = n.txn
  where n.settled_at is null
), settled as (
  insert into settlements (txn, settled_at, first_sent_at, unknown_since, lock_token, state, evidence, attempt, owner_deaths, leaf, outcome, problem,
    resolved_by, retried_by, detail, answer)
  select txn, settled_at, first_sent_at, unknown_since, lock_token, state::final_state, coalesce(evidence, 'gateway')::call_evidence, attempt,
    owner_deaths, leaf, outcome, problem, resolved_by, case when verdict = 'retry' then coalesce(resolved_by, '') end, detail, answer
  from next where settled_at is not null
  returning txn
), undone as (
  insert into undos (txn, state, tries, tries_from, waived, since, due_at, undo_txn, reason, doubt, before, args, sealed)
  select txn, undo_state::undo_state, undo_tries, undo_from, waived, undo_since, undo_due_at, undo_txn, undo_reason, undo_doubt, before, undo_args,
    undo_sealed
  -- The count waits for the settlements: an undo is refused without one.
  from next where (select count(*) from settled) >= 0
    and (undo_state <> 'none' or waived or undo_tries > 0 or undo_reason is not null or before is not null or undo_args is not null)
), described as (
  insert into call_events (txn, event)
  select n.txn, e.event from next n cross join lateral (
    select event, place from jsonb_array_elements(n.events) with ordinality as e(event, place)
    union all
    select jsonb_build_object('at', n.settled_at, 'what', 'contradiction', 'detail', n.contradiction), null where n.contradiction is not null
  ) e
  order by n.created_at, n.txn, e.place nulls last
), progress as (
  update carried_over p set (created_at, txn) = (select created_at, txn from next order by created_at desc, txn desc limit 1)
  where exists (select 1 from next)
)
select count(*)::integer as moved from next;
