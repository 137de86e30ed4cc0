-- Who has read what strangers wrote. A row for each agent, run and saga, written in the transaction of the first claim that
-- exposes it, and never taken back: nothing makes an agent forget.
create table taints (
  of     text not null check (of in ('agent', 'run', 'saga')),
  -- The name of the agent, or the id of the run or saga.
  holder text not null,
  -- The call whose answer it reads. Null: a resource or prompt of an MCP server, which is no call.
  txn    uuid,
  tool   text not null,
  at     timestamptz not null default now(),
  primary key (holder, of)
);

-- An untrusted call outside of runs exposes every run of its agent that is not finished.
create index runs_unfinished on runs (agent, id) where ended_at is null;
