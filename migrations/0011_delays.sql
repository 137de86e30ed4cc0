-- Calls that leave by themselves: the undo window of a rule's `delay`. Such a call is held like any other, and whoever may
-- decide can still stop it, or let it go at once.
alter table approvals
  -- How long it is held once people agreed; null: it goes at once.
  add column delay_ms double precision check (delay_ms > 0),
  -- When it leaves by itself; null: not before people agree.
  add column leaves_at timestamptz,
  drop constraint approvals_state_check,
  add constraint approvals_state_check
    check (state in ('pending', 'approved', 'rejected', 'expired', 'cancelled', 'unopposed')),
  -- Nobody agreed to it in person: what it left as must be known.
  add constraint unopposed_approvals_say_as_what check (state <> 'unopposed' or (leaves_at is not null and approved_digest is not null)),
  -- A replica of an older build, which knows no delays, must not take the end of one for silence.
  add constraint what_leaves_does_not_expire check (state <> 'expired' or leaves_at is null);

alter table notices
  drop constraint notices_kind_check,
  add constraint notices_kind_check check (kind in ('held', 'approved', 'rejected', 'expired', 'cancelled', 'unopposed'));

-- As before, and when it leaves.
create or replace function write_notice() returns trigger language plpgsql as $$
begin
  insert into notices (txn, kind, body) values (
    new.txn,
    case new.state when 'pending' then 'held' else new.state end,
    json_build_object(
      'txn', new.txn, 'agent', new.agent, 'tool', new.tool, 'state', new.state, 'shown', new.shown,
      'groups', new.groups, 'quorum', new.quorum,
      'requestedAt', new.requested_at, 'expiresAt', new.expires_at, 'leavesAt', new.leaves_at, 'decidedAt', new.decided_at,
      'votes', coalesce((
        select json_agg(json_build_object('person', v.person, 'verdict', v.verdict, 'reason', v.reason, 'at', v.at) order by v.at)
        from votes v where v.txn = new.txn), '[]'::json)
    )::text);
  return null;
end $$;
