-- requires: no live replicas
--
-- Splits `calls` into facts that never change and the state of unfinished calls. See docs/adr/0048-facts-are-appended.md.
-- This migration creates the tables, 0021 carries the rows over in batches, and 0022 drops the old tables. The transaction that
-- records 0020 also moves the old tables out of the way: a replica of an earlier version fails at its next statement.

-- 0019 filled these columns once. A replica without 0019 that ran on after it wrote only the texts, so they are read again.
alter table calls disable trigger calls_impossible;

update calls set undo_doubt = case when undo_reason like 'in doubt, a person must resolve it%' then 'person' else 'gateway' end
where undo_state = 'failed' and undo_reason like 'in doubt, %';
update calls set undo_doubt = null where undo_doubt is not null and undo_state = 'failed' and undo_reason not like 'in doubt, %';

update calls c set verdict = v.verdict,
  retry_requested = v.verdict = 'retry' and c.settled_at is null and (c.attempt_open or v.is_last)
from calls d cross join lateral (
  select e.event->>'verdict' as verdict, e.place = jsonb_array_length(d.events) as is_last
  from jsonb_array_elements(d.events) with ordinality as e(event, place)
  where e.event->>'what' = 'verdict' order by e.place desc limit 1
) v
where d.events <> '[]' and c.txn = d.txn and c.verdict is distinct from v.verdict;

update calls c set disproved_by = case when f.has_evidence then f.disproved_by else c.disproved_by end,
  attempt_detail = coalesce(f.detail, c.attempt_detail, case when f.taken_over then 'the process that sent it ended' end)
from calls d cross join lateral (
  select
    (array_agg(case e.event->>'what' when 'probe_not_applied' then 'probe' when 'observed_not_satisfied' then 'observation' end order by e.place desc)
      filter (where e.event->>'what' in ('probe_not_applied', 'observed_not_satisfied', 'verdict')))[1] as disproved_by,
    (array_agg(coalesce(e.event->>'told', e.event->>'detail') order by e.place desc) filter (where e.event->>'attempt' = d.attempt::text
      and (e.event ? 'told' or (e.event->>'what' = 'attempt_ended' and e.event ? 'detail'))))[1] as detail,
    bool_or(e.event->>'what' = 'taken_over' and e.event->>'attempt' = d.attempt::text) as taken_over,
    bool_or(e.event->>'what' in ('probe_not_applied', 'observed_not_satisfied', 'verdict')) as has_evidence
  from jsonb_array_elements(d.events) with ordinality as e(event, place)
) f
where d.settled_at is null and d.events <> '[]' and c.txn = d.txn and not c.attempt_open;

alter table calls rename to calls_before_split;
alter table calls_before_split rename constraint calls_pkey to calls_before_split_pkey;
alter index calls_by_agent rename to calls_before_split_by_agent;
alter index calls_by_run rename to calls_before_split_by_run;
alter index calls_by_saga rename to calls_before_split_by_saga;
alter index calls_by_time rename to calls_before_split_by_time;
alter table open_calls rename to open_calls_before_split;
alter table open_calls_before_split rename constraint open_calls_pkey to open_calls_before_split_pkey;
alter index open_calls_by_due rename to open_calls_before_split_by_due;
alter index open_calls_by_owner rename to open_calls_before_split_by_owner;
alter index open_calls_by_run rename to open_calls_before_split_by_run;
drop trigger open_calls_locks on open_calls_before_split;
drop trigger calls_impossible on calls_before_split;
drop function refuse_impossible();
drop type change_row;
drop type change_row_2;
drop type claim_row;

-- PostgreSQL parses each CHECK anew for each statement that writes the table. An enum costs nothing there and refuses the same.
create type call_kind as enum ('read', 'key', 'idempotent', 'probe', 'none');
create type call_identity as enum ('key', 'business', 'shared', 'repeat', 'undo', 'random');
create type open_state as enum ('held', 'ready', 'sending', 'running', 'in_doubt');
create type final_state as enum ('succeeded', 'failed', 'rejected', 'expired', 'cancelled');
create type call_evidence as enum ('answer', 'late_answer', 'same_key', 'probe', 'person', 'gateway');
create type undo_state as enum ('none', 'due', 'running', 'done', 'failed', 'skipped', 'irreversible');

-- The intent of a call, committed before anything is sent. Its payload may be erased; nothing else changes.
create table calls (
  txn uuid not null,
  created_at timestamptz not null default now(),
  key_lifetime_ms double precision,
  erased_at timestamptz,
  kind call_kind not null,
  identity call_identity not null,
  ordinal integer,
  epoch integer,
  saga uuid,
  run uuid,
  undo_of uuid,
  agent text not null,
  tool text not null,
  fingerprint bytea not null,
  policy_version text not null,
  rule text,
  key text,
  depends_on uuid[],
  args text,
  request text,
  sealed bytea,
  undo text,
  constraint calls_pkey primary key (txn),
  constraint possible_call check (octet_length(fingerprint) = 32 and (ordinal is null or saga is not null) and (run is null) = (epoch is null))
);

-- The state of a call until it ends. The row is updated in place and deleted when the settlement is written.
create table open_calls (
  txn uuid not null,
  owner uuid,
  due_at timestamptz,
  run uuid,
  state open_state not null,
  fence integer not null,
  update_number integer not null default 0,
  attempt integer not null default 0,
  unresolved integer not null default 0,
  round_from integer not null default 0,
  owner_deaths integer not null default 0,
  attempt_open boolean not null default false,
  recalled boolean not null default false,
  fenced boolean not null default false,
  retry_requested boolean not null default false,
  round_at timestamptz not null default now(),
  first_sent_at timestamptz,
  unknown_since timestamptz,
  lock_token bigint,
  detail text,
  attempt_detail text,
  disproved_by text,
  retried_by text,
  former_owners uuid[],
  constraint open_calls_pkey primary key (txn),
  constraint possible_open_call check (
    unresolved >= 0 and unresolved <= attempt and (attempt > 0) = (state in ('sending', 'running', 'in_doubt')) and (recalled or not fenced))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- The final answer of a call. Written once, in the statement that deletes the open call.
create table settlements (
  txn uuid not null,
  settled_at timestamptz not null default now(),
  first_sent_at timestamptz,
  unknown_since timestamptz,
  lock_token bigint,
  state final_state not null,
  evidence call_evidence not null,
  attempt integer not null,
  owner_deaths integer not null default 0,
  leaf bytea,
  outcome text,
  problem text,
  resolved_by text,
  retried_by text,
  detail text,
  answer text,
  constraint settlements_pkey primary key (txn),
  constraint possible_settlement check ((problem is null) = (state = 'succeeded') and (attempt = 0 or state in ('succeeded', 'failed')))
);

-- How a call is undone. A call has a row once something is known about its undo: an observation, arguments, or a state.
create table undos (
  txn uuid not null,
  state undo_state not null default 'none',
  tries integer not null default 0,
  tries_from integer not null default 0,
  waived boolean not null default false,
  since timestamptz,
  due_at timestamptz,
  undo_txn uuid,
  reason text,
  doubt text,
  before text,
  args text,
  sealed bytea,
  constraint undos_pkey primary key (txn),
  constraint running_undos_have_a_txn check (undo_txn is not null or state not in ('running', 'done'))
) with (fillfactor = 70);

-- The timeline of a call: what happened between its claim and its outcome, for people to read. Decisions never read it.
create table call_events (
  txn uuid not null,
  id bigint generated always as identity,
  event jsonb not null,
  constraint call_events_pkey primary key (txn, id)
);

-- Delivery matters only for the newest call of a slot, and the slot has a row already.
alter table repeats add column delivered_at timestamptz;

-- The rows of a batch. See gateway/ledger/calls/call-columns.ts.
create type claim_row as (
  txn uuid, agent text, tool text, key text, identity text, fingerprint bytea, kind text, key_lifetime_ms double precision,
  policy_version text, rule text, args text, request text, sealed bytea, saga uuid, depends_on text, undo text, undo_of uuid,
  run uuid, epoch integer, state text, fence integer, owner uuid, due_ms double precision, tries integer, place integer, entry text);
create type update_row as (
  txn uuid, fence integer, update_number integer, state text, attempt integer, attempt_open boolean, unresolved integer,
  unknown_ms double precision, detail text, attempt_detail text, disproved_by text, parked boolean, due_ms double precision, event text,
  undo_before text, undo_args text, undo_sealed bytea, undo_reason text, entry text);
create type settlement_row as (
  txn uuid, fence integer, update_number integer, evident boolean, unknown_ms double precision, state text, outcome text, problem text,
  detail text, answer text, evidence text, resolved_by text, leaf bytea,
  undo_before text, undo_args text, undo_sealed bytea, undo_reason text, entry text);

-- What is erased is not compared, so that PostgreSQL need not unpack it. Everything else stays as it is.
create function refuse_rewrite_of_call() returns trigger language plpgsql as $$
declare
  kept calls := old;
begin
  if new.key is null then kept.key := null; end if;
  if new.args is null then kept.args := null; end if;
  if new.request is null then kept.request := null; end if;
  if new.sealed is null then kept.sealed := null; end if;
  if new.undo is null then kept.undo := null; end if;
  if old.erased_at is null then kept.erased_at := new.erased_at; end if;
  if new is distinct from kept then
    raise exception 'call % never changes: it may be erased but not rewritten', old.txn using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger calls_immutable before update on calls for each row execute function refuse_rewrite_of_call();

create function refuse_rewrite_of_settlement() returns trigger language plpgsql as $$
declare
  kept settlements := old;
begin
  if new.detail is null then kept.detail := null; end if;
  if new.answer is null then kept.answer := null; end if;
  if new is distinct from kept then
    raise exception 'the settlement of call % never changes: it may be erased but not rewritten', old.txn using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger settlements_immutable before update on settlements for each row execute function refuse_rewrite_of_settlement();

create function refuse_rewrite_of_event() returns trigger language plpgsql as $$
begin
  if new is distinct from old then
    raise exception 'an event of call % never changes', old.txn using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger call_events_immutable before update on call_events for each row execute function refuse_rewrite_of_event();

create function refuse_open_call_transition() returns trigger language plpgsql as $$
begin
  if old.state <> new.state and old.state || '>' || new.state not in (
    'held>ready', 'held>sending', 'ready>sending', 'sending>running', 'sending>in_doubt', 'running>in_doubt') then
    raise exception 'call % may not go from % to %', old.txn, old.state, new.state using errcode = 'check_violation';
  end if;
  if new.txn <> old.txn or new.fence < old.fence or new.run is distinct from old.run then
    raise exception 'call % has a fence that only grows, and keeps its run', old.txn using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger open_calls_transitions before update on open_calls for each row execute function refuse_open_call_transition();

-- What was undone stays undone, and a compensation is never replaced while it may still act. Only what happened is undone.
create function refuse_undo_transition() returns trigger language plpgsql as $$
begin
  if tg_op = 'UPDATE' and old.state <> new.state and old.state || '>' || new.state not in (
    'none>due', 'none>skipped', 'none>irreversible', 'due>running', 'due>failed', 'running>done', 'running>due', 'running>failed',
    'failed>due', 'failed>running', 'failed>done') then
    raise exception 'the undo of call % may not go from % to %', old.txn, old.state, new.state using errcode = 'check_violation';
  end if;
  if new.state in ('due', 'running', 'done', 'failed')
    and not exists (select 1 from settlements where txn = new.txn and state = 'succeeded') then
    raise exception 'call % did not happen, so it is not undone', new.txn using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger undos_transitions before insert or update on undos for each row execute function refuse_undo_transition();

-- People must see a contradiction, and see it once.
create unique index one_contradiction on call_events (txn) where event ->> 'what' = 'contradiction';
create index calls_by_agent on calls (agent, created_at, txn);
create index calls_by_time on calls (created_at, txn);
create index calls_by_run on calls (run, created_at, txn) where run is not null;
create unique index calls_by_saga on calls (saga, ordinal) where saga is not null;
create index open_calls_by_due on open_calls (due_at) where owner is null and due_at is not null;
create index open_calls_by_owner on open_calls (owner) where owner is not null;
create index open_calls_by_run on open_calls (run) where run is not null;

-- The flags are called control flags everywhere else.
alter table switches rename to control_flags;
alter table control_flags rename constraint switches_pkey to control_flags_pkey;
alter table switch_version rename to control_flag_version;
alter table control_flag_version rename constraint switch_version_pkey to control_flag_version_pkey;
alter table control_flag_version rename constraint switch_version_only_row_check to control_flag_version_only_row_check;
alter table processes rename column switches_seen to control_flags_seen;

-- A replica of an earlier version that was paused during this migration has lost its lease. It must not get another one: its
-- statements no longer fit, and it would count as live.
alter table processes add column schema_version integer not null default 0;
create function refuse_older_replica() returns trigger language plpgsql as $$
begin
  raise exception 'a newer version of Oncegate has migrated this ledger: stop this process and start the newer version'
    using errcode = 'object_not_in_prerequisite_state';
end $$;
create trigger processes_version before insert on processes for each row when (new.schema_version < 20) execute function refuse_older_replica();

-- How far 0021 has come.
create table carried_over (
  only_row boolean primary key default true check (only_row),
  created_at timestamptz not null default '-infinity',
  txn uuid not null default '00000000-0000-0000-0000-000000000000'
);
insert into carried_over default values;
