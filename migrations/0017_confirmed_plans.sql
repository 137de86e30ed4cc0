-- The digest of the plan that the last rollback was bound to: whoever asks for that one again, because its answer was lost, is
-- told how the saga stands, and not that something else would be undone by now.
alter table sagas add column plan text;
