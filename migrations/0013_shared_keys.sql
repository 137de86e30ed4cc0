-- One wish of several agents: calls that are identified by their tool's key alone, and who took part in them.

-- Weaker than the one it replaces, so the rows that are there need not be looked at.
alter table calls drop constraint calls_identity_check;
alter table calls add constraint calls_identity_check
  check (identity in ('key', 'business', 'shared', 'repeat', 'undo', 'random')) not valid;

-- Agents that asked for a call which another one had asked for before. The first one is the agent of the call itself.
create table joins (
  txn       uuid not null,
  agent     text not null,
  joined_at timestamptz not null default now(),
  primary key (txn, agent)
);

-- A caller's own key that came with a shared wish, as the txn it would have been otherwise: it stands for that call only.
create table aliases (
  alias uuid primary key,
  txn   uuid not null
);
create index aliases_by_txn on aliases (txn);
