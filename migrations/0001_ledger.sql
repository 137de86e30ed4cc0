-- The ledger. One row per transaction, for ever: a payload expires, the row stays as a tombstone so that an old key is
-- answered with 410 and never executed anew.

create table deployment (
  only_row   boolean primary key default true check (only_row),
  id         uuid not null,
  created_at timestamptz not null default now()
);

-- A gateway process and its lease. An attempt in flight belongs to a process; when the lease lapses (or the process is
-- known to be gone) another one takes its calls over. PostgreSQL's clock decides, never a gateway's.
create table processes (
  id          uuid primary key,
  host        text not null,
  pid         integer not null,
  pid_started text not null,
  started_at  timestamptz not null default now(),
  lease_until timestamptz not null,
  ended_at    timestamptz
);

create table calls (
  txn            uuid primary key,
  agent          text not null,
  tool           text not null,
  key            text,
  identity       text not null check (identity in ('key', 'business', 'repeat', 'undo', 'random')),
  fingerprint    bytea not null check (octet_length(fingerprint) = 32),
  kind           text not null check (kind in ('read', 'key', 'nature', 'probe', 'none')),
  state          text not null check (state in ('held', 'ready', 'sending', 'in_doubt', 'succeeded', 'failed', 'rejected', 'expired', 'cancelled')),
  fence          integer not null default 1,
  step           integer not null default 0,
  attempt        integer not null default 0 check (attempt >= 0),
  attempt_open   boolean not null default false,
  unresolved     integer not null default 0 check (unresolved between 0 and attempt),
  round_from     integer not null default 0,
  owner_deaths   integer not null default 0,
  created_at     timestamptz not null default now(),
  first_sent_at  timestamptz,
  round_at       timestamptz not null default now(),
  unknown_since  timestamptz,
  key_lifetime_ms double precision,
  policy_version text not null,
  rule           text,
  args           text,
  request        text,
  sealed         bytea,
  outcome        text,
  problem        text,
  detail         text,
  answer         text,
  evidence       text check (evidence in ('answer', 'late_answer', 'same_key', 'probe', 'person', 'gateway')),
  resolved_by    text,
  settled_at     timestamptz,
  delivered_at   timestamptz,
  erased_at      timestamptz,
  leaf           bytea,
  contradiction  text,
  events         jsonb not null default '[]',

  constraint attempts_only_when_sent check (attempt = 0 or state not in ('held', 'ready', 'rejected')),
  constraint sent_calls_have_attempts check (attempt > 0 or state not in ('sending', 'in_doubt')),
  constraint final_calls_are_settled check ((settled_at is not null) = (state in ('succeeded', 'failed', 'rejected', 'expired', 'cancelled'))),
  constraint failures_have_a_reason check ((problem is not null) = (state in ('failed', 'rejected', 'expired', 'cancelled'))),
  constraint doubt_is_ended_by_evidence check (evidence is not null or state not in ('succeeded', 'failed')),
  constraint failed_means_no_effect check (state <> 'failed' or unresolved = 0)
) with (fillfactor = 70);

-- Both on columns that never change, so that every update of a call stays heap-only.
create index calls_by_agent on calls (agent, created_at, txn);
create index calls_by_time on calls (created_at, txn);

-- Which calls are open and who is responsible: a process (owner), the clock (due_at), or a person (neither).
-- Kept apart from `calls` so that settling touches no index of the large table.
create table open_calls (
  txn    uuid primary key,
  owner  uuid,
  due_at timestamptz
);
create index open_calls_by_owner on open_calls (owner) where owner is not null;
create index open_calls_by_due on open_calls (due_at) where owner is null and due_at is not null;

-- Calls without any key: the newest generation of an identical wish. The txn is derived from slot and generation, so two
-- replicas that race for the next generation race for the same txn, and the unique claim decides.
create table repeats (
  slot       uuid primary key,
  generation integer not null,
  txn        uuid not null
);

-- Leaves of the tamper-evident log, inserted in the transaction of what they record.
create table audit_queue (
  id    bigint generated always as identity primary key,
  entry text not null
);

-- How far the sweeper of expired payloads has come, and which old calls were still open when it passed.
create table sweeps (
  name       text primary key,
  through_at timestamptz not null
);
create table sweep_later (
  txn uuid primary key
);

create function refuse_transition() returns trigger language plpgsql as $$
begin
  raise exception 'call % may not go from % to %', old.txn, old.state, new.state using errcode = 'check_violation';
end $$;

create trigger calls_transitions before update on calls for each row
  when (old.state <> new.state and old.state || '>' || new.state not in (
    'held>ready', 'held>sending', 'held>rejected', 'held>expired', 'held>cancelled',
    'ready>sending', 'ready>failed', 'ready>cancelled', 'ready>expired',
    'sending>in_doubt', 'sending>succeeded', 'sending>failed',
    'in_doubt>succeeded', 'in_doubt>failed'))
  execute function refuse_transition();

create function refuse_rewrite() returns trigger language plpgsql as $$
begin
  raise exception 'call % is final: its answer may be erased but not changed', old.txn using errcode = 'check_violation';
end $$;

create trigger calls_final before update on calls for each row
  when (old.settled_at is not null and (
    new.settled_at is distinct from old.settled_at or new.outcome is distinct from old.outcome
    or new.problem is distinct from old.problem or new.evidence is distinct from old.evidence
    or new.leaf is distinct from old.leaf or new.attempt <> old.attempt
    or (new.answer is distinct from old.answer and (new.erased_at is null or new.answer is not null))))
  execute function refuse_rewrite();

create trigger calls_identity before update on calls for each row
  when (new.txn <> old.txn or new.agent <> old.agent or new.tool <> old.tool or new.fingerprint <> old.fingerprint
    or new.kind <> old.kind or new.created_at <> old.created_at or new.fence < old.fence)
  execute function refuse_rewrite();
