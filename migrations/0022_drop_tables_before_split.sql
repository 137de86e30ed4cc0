-- The rows are carried over: see 0020 and 0021.
update repeats r set delivered_at = c.delivered_at from calls_before_split c where c.txn = r.txn;
drop table open_calls_before_split;
drop table calls_before_split;
drop table carried_over;
-- Locks end with their open call. Created last, so that carrying over released none.
create trigger open_calls_locks after delete on open_calls for each row when (old.lock_token is not null) execute function release_call_locks();
