-- What people are to be told about approvals: an outbox. A notice is written by the very statement that holds or decides
-- the call, so neither can be there without the other; a worker of any replica delivers it, and it is gone when it was taken.
create table notices (
  id         uuid primary key default gen_random_uuid(),
  txn        uuid not null,
  kind       text not null check (kind in ('held', 'approved', 'rejected', 'expired', 'cancelled')),
  body       text not null,
  created_at timestamptz not null default now(),
  due_at     timestamptz not null default now(),
  tries      integer not null default 0 check (tries >= 0)
);
create index notices_by_due on notices (due_at);

-- `shown` goes in as text, not as JSON: it may hold \u0000, which PostgreSQL's JSON functions refuse. It is redacted already.
create function write_notice() returns trigger language plpgsql as $$
begin
  insert into notices (txn, kind, body) values (
    new.txn,
    case new.state when 'pending' then 'held' else new.state end,
    json_build_object(
      'txn', new.txn, 'agent', new.agent, 'tool', new.tool, 'state', new.state, 'shown', new.shown,
      'groups', new.groups, 'quorum', new.quorum,
      'requestedAt', new.requested_at, 'expiresAt', new.expires_at, 'decidedAt', new.decided_at,
      'votes', coalesce((
        select json_agg(json_build_object('person', v.person, 'verdict', v.verdict, 'reason', v.reason, 'at', v.at) order by v.at)
        from votes v where v.txn = new.txn), '[]'::json)
    )::text);
  return null;
end $$;

create trigger approvals_held after insert on approvals for each row execute function write_notice();
create trigger approvals_decided after update of state on approvals for each row
  when (old.state <> new.state) execute function write_notice();
