-- The tamper-evident log. Leaves wait in `audit_queue` until one of the gateways gives them their place: a tree in the manner of
-- RFC 6962 over all of them, and a signed checkpoint for every size that anybody was ever told.

create table audit_log (
  index bigint primary key check (index >= 0),
  leaf  bytea not null check (octet_length(leaf) = 32),
  entry text not null
);
create index audit_log_by_leaf on audit_log using hash (leaf);

-- Of every 256 hashes of one level that are complete, the one above them. Level 0 are the leaves themselves.
create table audit_nodes (
  level integer not null check (level > 0),
  index bigint not null check (index >= 0),
  hash  bytea not null check (octet_length(hash) = 32),
  primary key (level, index)
);

create table audit_checkpoints (
  size bigint primary key check (size > 0),
  note text not null,
  at   timestamptz not null default clock_timestamp()
);

-- Whoever gives leaves their place holds this row. `settled_id`: nothing in the queue up to here is looked for any more, so that a
-- queue whose dead rows a long transaction (a backup) keeps from being cleaned is not read from its beginning each time. An id is
-- drawn before its transaction commits, so the next such id has to wait until every transaction of its time is over.
create table audit_head (
  only_row     boolean primary key default true check (only_row),
  size         bigint not null default 0,
  sealed_at    timestamptz not null default '-infinity',
  settled_id   bigint not null default 0,
  settling_id  bigint not null default 0,
  settling_xid xid8 not null default '0',
  settling_at  timestamptz not null default '-infinity'
);
insert into audit_head default values;

-- Everything that was logged, in its place or still waiting for one.
create view audit_entries as
  select index, null::bigint as id, entry from audit_log
  union all
  select null, id, entry from audit_queue;

-- What is logged stays. Somebody who owns the database can undo this too; that is what checkpoints outside of it are for.
create function refuse_change_of_log() returns trigger language plpgsql as $$
begin
  raise exception 'the log is append-only: % of % is refused', lower(tg_op), tg_table_name using errcode = 'insufficient_privilege';
end $$;

create trigger audit_log_append_only before update or delete or truncate on audit_log
  for each statement execute function refuse_change_of_log();
create trigger audit_nodes_append_only before update or delete or truncate on audit_nodes
  for each statement execute function refuse_change_of_log();
create trigger audit_checkpoints_append_only before update or delete or truncate on audit_checkpoints
  for each statement execute function refuse_change_of_log();
create trigger audit_queue_append_only before update or truncate on audit_queue
  for each statement execute function refuse_change_of_log();

-- A leaf leaves the queue only by the hand of whoever puts it in its place.
create function refuse_loss_of_leaves() returns trigger language plpgsql as $$
begin
  if current_setting('oncegate.sequencing', true) is distinct from 'on' then
    raise exception 'the log is append-only: what waits for its place cannot be deleted' using errcode = 'insufficient_privilege';
  end if;
  return null;
end $$;
create trigger audit_queue_kept before delete on audit_queue
  for each statement execute function refuse_loss_of_leaves();

revoke update, delete, truncate on audit_log, audit_nodes, audit_checkpoints from public, current_user;
revoke update, truncate on audit_queue from public, current_user;

-- Rows come and go quickly here: cleaned often, the table stays as small as what waits.
alter table audit_queue set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
