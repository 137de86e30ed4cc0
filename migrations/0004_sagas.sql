-- Sagas: calls that belong together, and how each of them is undone.

create table sagas (
  id         uuid primary key,
  agent      text not null,
  name       text,
  key        text,
  asked      bytea not null,
  state      text not null default 'open' check (state in ('open', 'committed', 'rolling_back', 'rolled_back', 'parked', 'closed')),
  reason     text,
  by         text,
  -- How many steps were ever claimed: the last one's ordinal. A step that was given up unsent leaves a gap.
  steps      integer not null default 0 check (steps >= 0),
  -- Steps up to this ordinal stay; -1 undoes everything, for good. Null: no rollback was ever asked for.
  keep       integer check (keep >= -1),
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  on_expire  text not null default 'rollback' check (on_expire in ('rollback', 'park')),
  ended_at   timestamptz,
  constraint a_rollback_knows_its_reach check (keep is not null or state not in ('rolling_back', 'rolled_back')),
  constraint ended_sagas_say_when check ((ended_at is not null) = (state in ('committed', 'rolled_back', 'closed')))
);
create index sagas_by_agent on sagas (agent, created_at, id);
create index sagas_by_time on sagas (created_at, id);

create function refuse_saga_transition() returns trigger language plpgsql as $$
begin
  raise exception 'saga % may not go from % to %', old.id, old.state, new.state using errcode = 'check_violation';
end $$;

create trigger sagas_transitions before update on sagas for each row
  when (old.state <> new.state and old.state || '>' || new.state not in (
    'open>committed', 'open>rolling_back', 'open>parked',
    'rolling_back>rolled_back', 'rolling_back>parked', 'rolling_back>open',
    'parked>rolling_back', 'parked>closed'))
  execute function refuse_saga_transition();

create table savepoints (
  saga  uuid not null references sagas on delete cascade,
  name  text not null,
  after integer not null check (after >= 0),
  at    timestamptz not null default now(),
  primary key (saga, name)
);

-- What is to be looked at, and when: a saga whose time runs out or that is rolled back, or one call that is undone by
-- itself. Whoever looks pushes `due_at` ahead first; if it dies, the next one looks then.
create table undo_work (
  id     uuid primary key,
  of     text not null check (of in ('saga', 'call')),
  due_at timestamptz not null
);
create index undo_work_by_due on undo_work (due_at);

alter table calls
  add column saga        uuid,
  add column ordinal     integer,
  add column depends_on  uuid[],
  -- The rollback of its saga was asked for: nothing more of it is sent, except to find out about what was.
  add column recalled    boolean not null default false,
  -- How it is undone, as the contract said when the intent was written; its arguments come with the outcome.
  add column undo        text,
  add column undo_args   text,
  add column undo_sealed bytea,
  -- What was observed before the first byte left.
  add column before      text,
  add column undo_state  text not null default 'none' check (undo_state in ('none', 'due', 'running', 'done', 'failed', 'skipped', 'irreversible')),
  add column undo_reason text,
  add column undo_txn    uuid,
  add column undo_tries  integer not null default 0,
  -- Tries before the present round: a person's "resume" starts a new one.
  add column undo_from   integer not null default 0,
  add column undo_since  timestamptz,
  add column undo_due_at timestamptz,
  add column waived      boolean not null default false,
  -- Of a compensation: the call that it undoes.
  add column undo_of     uuid,
  add constraint steps_have_a_saga check (ordinal is null or saga is not null),
  add constraint running_undos_have_a_txn check (undo_txn is not null or undo_state not in ('running', 'done')),
  add constraint only_what_happened_is_undone check (state = 'succeeded' or undo_state not in ('due', 'running', 'done', 'failed'));

-- Neither column ever changes, so updates stay heap-only.
create unique index calls_by_saga on calls (saga, ordinal) where saga is not null;

-- What a call may never do, in one trigger: its condition is asked for every update, so there is one of them, and the cheap
-- questions come first. New here: `ready>succeeded`, because the world was as asked before anything was sent; the life of an
-- undo; and what a call says about its saga and its undo, which is for ever.
drop trigger calls_transitions on calls;
drop trigger calls_final on calls;
drop trigger calls_identity on calls;
drop function refuse_transition();
drop function refuse_rewrite();

create function refuse_impossible() returns trigger language plpgsql as $$
begin
  if old.state <> new.state and old.state || '>' || new.state not in (
    'held>ready', 'held>sending', 'held>rejected', 'held>expired', 'held>cancelled',
    'ready>sending', 'ready>succeeded', 'ready>failed', 'ready>cancelled', 'ready>expired',
    'sending>in_doubt', 'sending>succeeded', 'sending>failed',
    'in_doubt>succeeded', 'in_doubt>failed') then
    raise exception 'call % may not go from % to %', old.txn, old.state, new.state using errcode = 'check_violation';
  end if;
  -- What was undone stays undone, and a compensation is never replaced while it may still act.
  if old.undo_state <> new.undo_state and old.undo_state || '>' || new.undo_state not in (
    'none>due', 'none>skipped', 'none>irreversible',
    'due>running', 'due>failed',
    'running>done', 'running>due', 'running>failed',
    'failed>due', 'failed>running', 'failed>done') then
    raise exception 'the undo of call % may not go from % to %', old.txn, old.undo_state, new.undo_state using errcode = 'check_violation';
  end if;
  raise exception 'call % is final, or this never changes: it may be erased but not rewritten', old.txn using errcode = 'check_violation';
end $$;

create trigger calls_impossible before update on calls for each row
  when (
    (old.state <> new.state and old.state || '>' || new.state not in (
      'sending>succeeded', 'sending>in_doubt', 'sending>failed', 'in_doubt>succeeded', 'in_doubt>failed',
      'held>ready', 'held>sending', 'held>rejected', 'held>expired', 'held>cancelled',
      'ready>sending', 'ready>succeeded', 'ready>failed', 'ready>cancelled', 'ready>expired'))
    or (old.undo_state <> new.undo_state and old.undo_state || '>' || new.undo_state not in (
      'none>due', 'none>skipped', 'none>irreversible', 'due>running', 'due>failed', 'running>done', 'running>due', 'running>failed',
      'failed>due', 'failed>running', 'failed>done'))
    or new.txn <> old.txn or new.fence < old.fence or new.created_at <> old.created_at or new.kind <> old.kind
    or new.agent <> old.agent or new.tool <> old.tool or new.fingerprint <> old.fingerprint
    or new.saga is distinct from old.saga or new.ordinal is distinct from old.ordinal or new.undo_of is distinct from old.undo_of
    or (new.undo is distinct from old.undo and new.erased_at is null)
    or (old.settled_at is not null and (
      new.settled_at is distinct from old.settled_at or new.outcome is distinct from old.outcome
      or new.problem is distinct from old.problem or new.evidence is distinct from old.evidence
      or new.leaf is distinct from old.leaf or new.attempt <> old.attempt
      or (new.answer is distinct from old.answer and (new.erased_at is null or new.answer is not null)))))
  execute function refuse_impossible();
