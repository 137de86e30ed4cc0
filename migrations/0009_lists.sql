-- What lists and erasures look for, found without walking everything there is.

create index sagas_by_state on sagas (state, created_at, id);
create index runs_watched on runs (created_at, id) where ended_at is null and ttl_ms is not null;
create index notices_by_txn on notices (txn);
