-- The policy language says `once: { by: idempotent }` where it said `once: { by: nature }`; stored calls follow.
-- The trigger refuses a change of a call's kind, so it is off for this one statement.
alter table calls disable trigger calls_impossible;
update calls set kind = 'idempotent' where kind = 'nature';
alter table calls enable trigger calls_impossible;

create or replace function refuse_impossible() returns trigger language plpgsql as $$
declare
  broken text;
begin
  broken := case
    when new.state not in ('sending', 'succeeded', 'failed', 'in_doubt', 'held', 'ready', 'rejected', 'expired', 'cancelled') then 'calls_state_check'
    when new.kind not in ('read', 'key', 'idempotent', 'probe', 'none') then 'calls_kind_check'
    when new.identity not in ('key', 'business', 'shared', 'repeat', 'undo', 'random') then 'calls_identity_check'
    when new.undo_state not in ('none', 'due', 'running', 'done', 'failed', 'skipped', 'irreversible') then 'calls_undo_state_check'
    when new.evidence not in ('answer', 'late_answer', 'same_key', 'probe', 'person', 'gateway') then 'calls_evidence_check'
    when octet_length(new.fingerprint) <> 32 then 'calls_fingerprint_check'
    when new.attempt < 0 then 'calls_attempt_check'
    when new.unresolved not between 0 and new.attempt then 'calls_check'
    when new.attempt <> 0 and new.state in ('held', 'ready', 'rejected') then 'attempts_only_when_sent'
    when new.attempt <= 0 and new.state in ('sending', 'in_doubt') then 'sent_calls_have_attempts'
    when (new.settled_at is not null) <> (new.state in ('succeeded', 'failed', 'rejected', 'expired', 'cancelled')) then 'final_calls_are_settled'
    when (new.problem is not null) <> (new.state in ('failed', 'rejected', 'expired', 'cancelled')) then 'failures_have_a_reason'
    when new.evidence is null and new.state in ('succeeded', 'failed') then 'doubt_is_ended_by_evidence'
    when new.state = 'failed' and new.unresolved <> 0 then 'failed_means_no_effect'
    when new.ordinal is not null and new.saga is null then 'steps_have_a_saga'
    when new.undo_txn is null and new.undo_state in ('running', 'done') then 'running_undos_have_a_txn'
    when new.state <> 'succeeded' and new.undo_state in ('due', 'running', 'done', 'failed') then 'only_what_happened_is_undone'
    when (new.run is null) <> (new.epoch is null) then 'calls_of_a_run_have_an_epoch'
    when new.fenced and not new.recalled then 'fenced_calls_are_recalled'
  end;
  if broken is not null then
    raise exception 'call % violates check %', new.txn, broken using errcode = 'check_violation', constraint = broken;
  end if;
  if tg_op = 'INSERT' then
    return new;
  end if;
  if old.state <> new.state and old.state || '>' || new.state not in (
    'sending>succeeded', 'sending>in_doubt', 'sending>failed', 'in_doubt>succeeded', 'in_doubt>failed',
    'held>ready', 'held>sending', 'held>rejected', 'held>expired', 'held>cancelled',
    'ready>sending', 'ready>succeeded', 'ready>failed', 'ready>cancelled', 'ready>expired') then
    raise exception 'call % may not go from % to %', old.txn, old.state, new.state using errcode = 'check_violation';
  end if;
  -- What was undone stays undone, and a compensation is never replaced while it may still act.
  if old.undo_state <> new.undo_state and old.undo_state || '>' || new.undo_state not in (
    'none>due', 'none>skipped', 'none>irreversible', 'due>running', 'due>failed', 'running>done', 'running>due', 'running>failed',
    'failed>due', 'failed>running', 'failed>done') then
    raise exception 'the undo of call % may not go from % to %', old.txn, old.undo_state, new.undo_state using errcode = 'check_violation';
  end if;
  if new.txn <> old.txn or new.fence < old.fence or new.created_at <> old.created_at or new.kind <> old.kind
    or new.agent <> old.agent or new.tool <> old.tool or new.fingerprint <> old.fingerprint
    or new.saga is distinct from old.saga or new.ordinal is distinct from old.ordinal or new.undo_of is distinct from old.undo_of
    or (new.undo is distinct from old.undo and new.erased_at is null)
    or (old.settled_at is not null and (
      new.settled_at is distinct from old.settled_at or new.outcome is distinct from old.outcome
      or new.problem is distinct from old.problem or new.evidence is distinct from old.evidence
      or new.leaf is distinct from old.leaf or new.attempt <> old.attempt
      or (new.answer is distinct from old.answer and (new.erased_at is null or new.answer is not null)))) then
    raise exception 'call % is final, or this never changes: it may be erased but not rewritten', old.txn using errcode = 'check_violation';
  end if;
  return new;
end $$;
