-- A row comes and goes here with every call: cleaned often, the table stays as small as what is open.
alter table open_calls set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
