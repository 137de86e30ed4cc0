-- Runs: the work of one agent that outlives its processes. Whoever takes a run raises its epoch, and everything that an older
-- epoch still wants to begin is refused.

create table runs (
  id            uuid primary key,
  agent         text not null,
  name          text not null,
  epoch         integer not null default 0 check (epoch >= 0),
  created_at    timestamptz not null default now(),
  taken_at      timestamptz not null default now(),
  -- After so long without a sign of life it counts as abandoned. Null: it never does.
  ttl_ms        double precision check (ttl_ms > 0),
  heartbeat_at  timestamptz,
  -- What its holder wrote down for a successor, as JSON text: it may hold \u0000, which PostgreSQL's JSON types refuse.
  checkpoint    text,
  checkpoint_at timestamptz,
  -- Its holder said that it is done: it takes no more calls until it is taken again.
  ended_at      timestamptz,
  constraint checkpoints_have_a_time check ((checkpoint is null) = (checkpoint_at is null))
);
create index runs_by_agent on runs (agent, created_at, id);
create index runs_by_time on runs (created_at, id);

-- Which epoch a take under an Idempotency-Key was given: a retry whose answer was lost gets the same one.
create table run_takes (
  run   uuid not null references runs on delete cascade,
  key   text not null,
  epoch integer not null check (epoch >= 1),
  primary key (run, key)
);

create function refuse_run_rewrite() returns trigger language plpgsql as $$
begin
  raise exception 'run % may not go from epoch % to %, or be another''s', old.id, old.epoch, new.epoch using errcode = 'check_violation';
end $$;

create trigger runs_impossible before update on runs for each row
  when (new.epoch < old.epoch or new.id <> old.id or new.agent <> old.agent or new.name <> old.name)
  execute function refuse_run_rewrite();

alter table calls
  add column run    uuid,
  add column epoch  integer,
  -- Its run was taken over: nothing more of it is sent, and of a `nature` call not even to find out.
  add column fenced boolean not null default false,
  add constraint calls_of_a_run_have_an_epoch check ((run is null) = (epoch is null)),
  add constraint fenced_calls_are_recalled check (recalled or not fenced);

-- None of these columns ever changes, so updates stay heap-only.
create index calls_by_run on calls (run, created_at, txn) where run is not null;

-- What of a run is open is asked at every take, and is few beside its history.
alter table open_calls add column run uuid;
create index open_calls_by_run on open_calls (run) where run is not null;
