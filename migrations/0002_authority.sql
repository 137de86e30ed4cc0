-- What a person decides, what an agent may still spend, and what is switched off.

-- One row per call that waits, or waited, for people. What they were shown is kept word for word: a decision names its
-- digest, and what runs is exactly that.
create table approvals (
  txn            uuid primary key,
  agent          text not null,
  tool           text not null,
  state          text not null default 'pending' check (state in ('pending', 'approved', 'rejected', 'expired', 'cancelled')),
  shown          text,
  groups         text[] not null,
  quorum         integer not null check (quorum >= 1),
  approved_digest bytea,
  requested_at   timestamptz not null default now(),
  expires_at     timestamptz not null,
  decided_at     timestamptz,
  constraint decided_approvals_say_when check ((decided_at is null) = (state = 'pending'))
);
create index approvals_pending on approvals (agent) where state = 'pending';
create index approvals_by_time on approvals (requested_at, txn);

-- One vote a person and call; a changed mind before the decision replaces it.
create table votes (
  txn     uuid not null,
  person  text not null,
  verdict text not null check (verdict in ('approve', 'reject')),
  digest  bytea not null,
  reason  text not null,
  at      timestamptz not null default now(),
  primary key (txn, person)
);

-- What counts against a rule's rate or budget. The bucket's row is locked while a call is counted, so the count is exact
-- whatever the number of replicas; the window slides over the times at which PostgreSQL saw the calls.
create table limit_buckets (
  bucket text primary key
);
create table spends (
  bucket text not null,
  at     timestamptz not null default clock_timestamp(),
  txn    uuid not null,
  amount double precision not null check (amount >= 0)
);
create index spends_by_time on spends (bucket, at);
create index spends_by_txn on spends (txn);

-- Switches that every replica must have seen before whoever threw them is answered: frozen agents, tools, everything, and
-- breakers opened by hand. `version` grows with every change; a process says in `processes.switches_seen` how far it got.
create table switches (
  scope  text primary key,
  by     text not null,
  reason text not null,
  at     timestamptz not null default now()
);
create table switch_version (
  only_row boolean primary key default true check (only_row),
  version  bigint not null
);
insert into switch_version (version) values (1);

alter table processes add column switches_seen bigint not null default 0;
