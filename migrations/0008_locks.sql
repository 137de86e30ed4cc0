-- Locks on things in the world, which tools declare and calls hold.

-- Grows for ever: of two holders of one resource the later one has the larger token.
create sequence lock_tokens;

-- Whoever takes locks keeps the gates of their names until it commits, so that nobody else takes a lock that conflicts in between.
-- There are 4096 of them at most.
create table lock_gates (
  gate text primary key
);

-- One row for each resource and holder. A call always holds what it locked itself; a saga or a run may hold it beside it, and
-- longer. Names are hashed with the key of the gateway, segment by segment, because they may tell what a tool redacts.
create table locks (
  id       bigint generated always as identity,
  resource text collate "C" not null,
  holder   uuid not null,
  of       text not null check (of in ('call', 'saga', 'run')),
  mode     text not null check (mode in ('shared', 'exclusive')),
  token    bigint not null,
  -- What people are shown of the name.
  shown    text not null,
  txn      uuid not null,
  agent    text not null,
  tool     text not null,
  taken_at timestamptz not null default now(),
  primary key (resource, holder)
);
create index locks_by_holder on locks (holder);
create unique index locks_by_id on locks (id);

alter table calls add column lock_token bigint;
alter table open_calls add column locked boolean not null default false;

-- A call lets go of its locks in the very transaction in which it stops being open, however it does; a saga when it ends, a
-- run when it is finished. No statement can forget it, and what is in doubt is open.
create function release_call_locks() returns trigger language plpgsql as $$
begin
  delete from locks where holder = old.txn;
  return null;
end $$;

create function release_locks() returns trigger language plpgsql as $$
begin
  delete from locks where holder = new.id;
  return null;
end $$;

create trigger open_calls_locks after delete on open_calls for each row when (old.locked) execute function release_call_locks();
create trigger sagas_locks after update on sagas for each row
  when (old.ended_at is null and new.ended_at is not null) execute function release_locks();
create trigger runs_locks after update on runs for each row
  when (old.ended_at is null and new.ended_at is not null) execute function release_locks();
