-- The schema of the ledger, after all migrations. Made from a migrated database, and held to it by
-- test/ledger/schema.test.ts: to change the schema, write a migration; to write this anew, run that test with -u.

create sequence lock_tokens as bigint;

create type call_evidence as enum ('answer', 'late_answer', 'same_key', 'probe', 'person', 'gateway');

create type call_identity as enum ('key', 'business', 'shared', 'repeat', 'undo', 'random');

create type call_kind as enum ('read', 'key', 'idempotent', 'probe', 'none');

create type final_state as enum ('succeeded', 'failed', 'rejected', 'expired', 'cancelled');

create type open_state as enum ('held', 'ready', 'sending', 'running', 'in_doubt');

create type undo_state as enum ('none', 'due', 'running', 'done', 'failed', 'skipped', 'irreversible');

create type claim_row as (
  txn uuid,
  agent text,
  tool text,
  key text,
  identity text,
  fingerprint bytea,
  kind text,
  key_lifetime_ms double precision,
  policy_version text,
  rule text,
  args text,
  request text,
  sealed bytea,
  saga uuid,
  depends_on text,
  undo text,
  undo_of uuid,
  run uuid,
  epoch integer,
  state text,
  fence integer,
  owner uuid,
  due_ms double precision,
  tries integer,
  place integer,
  entry text
);

create type settlement_row as (
  txn uuid,
  fence integer,
  update_number integer,
  evident boolean,
  unknown_ms double precision,
  state text,
  outcome text,
  problem text,
  detail text,
  answer text,
  evidence text,
  resolved_by text,
  leaf bytea,
  undo_before text,
  undo_args text,
  undo_sealed bytea,
  undo_reason text,
  entry text
);

create type update_row as (
  txn uuid,
  fence integer,
  update_number integer,
  state text,
  attempt integer,
  attempt_open boolean,
  unresolved integer,
  unknown_ms double precision,
  detail text,
  attempt_detail text,
  disproved_by text,
  parked boolean,
  due_ms double precision,
  event text,
  undo_before text,
  undo_args text,
  undo_sealed bytea,
  undo_reason text,
  entry text
);

CREATE OR REPLACE FUNCTION public.refuse_change_of_log()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  raise exception 'the log is append-only: % of % is refused', lower(tg_op), tg_table_name using errcode = 'insufficient_privilege';
end $function$;

CREATE OR REPLACE FUNCTION public.refuse_loss_of_leaves()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  if current_setting('oncegate.sequencing', true) is distinct from 'on' then
    raise exception 'the log is append-only: what waits for its place cannot be deleted' using errcode = 'insufficient_privilege';
  end if;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION public.refuse_older_replica()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  raise exception 'a newer version of Oncegate has migrated this ledger: stop this process and start the newer version'
    using errcode = 'object_not_in_prerequisite_state';
end $function$;

CREATE OR REPLACE FUNCTION public.refuse_open_call_transition()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  if old.state <> new.state and old.state || '>' || new.state not in (
    'held>ready', 'held>sending', 'ready>sending', 'sending>running', 'sending>in_doubt', 'running>in_doubt') then
    raise exception 'call % may not go from % to %', old.txn, old.state, new.state using errcode = 'check_violation';
  end if;
  if new.txn <> old.txn or new.fence < old.fence or new.run is distinct from old.run then
    raise exception 'call % has a fence that only grows, and keeps its run', old.txn using errcode = 'check_violation';
  end if;
  return new;
end $function$;

CREATE OR REPLACE FUNCTION public.refuse_rewrite_of_call()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
declare
  kept calls := old;
begin
  if new.key is null then kept.key := null; end if;
  if new.args is null then kept.args := null; end if;
  if new.request is null then kept.request := null; end if;
  if new.sealed is null then kept.sealed := null; end if;
  if new.undo is null then kept.undo := null; end if;
  if old.erased_at is null then kept.erased_at := new.erased_at; end if;
  if new is distinct from kept then
    raise exception 'call % never changes: it may be erased but not rewritten', old.txn using errcode = 'check_violation';
  end if;
  return new;
end $function$;

CREATE OR REPLACE FUNCTION public.refuse_rewrite_of_event()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  if new is distinct from old then
    raise exception 'an event of call % never changes', old.txn using errcode = 'check_violation';
  end if;
  return new;
end $function$;

CREATE OR REPLACE FUNCTION public.refuse_rewrite_of_settlement()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
declare
  kept settlements := old;
begin
  if new.detail is null then kept.detail := null; end if;
  if new.answer is null then kept.answer := null; end if;
  if new is distinct from kept then
    raise exception 'the settlement of call % never changes: it may be erased but not rewritten', old.txn using errcode = 'check_violation';
  end if;
  return new;
end $function$;

CREATE OR REPLACE FUNCTION public.refuse_run_rewrite()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  raise exception 'run % may not go from epoch % to %, or be another''s', old.id, old.epoch, new.epoch using errcode = 'check_violation';
end $function$;

CREATE OR REPLACE FUNCTION public.refuse_saga_transition()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  raise exception 'saga % may not go from % to %', old.id, old.state, new.state using errcode = 'check_violation';
end $function$;

CREATE OR REPLACE FUNCTION public.refuse_undo_transition()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  if tg_op = 'UPDATE' and old.state <> new.state and old.state || '>' || new.state not in (
    'none>due', 'none>skipped', 'none>irreversible', 'due>running', 'due>failed', 'running>done', 'running>due', 'running>failed',
    'failed>due', 'failed>running', 'failed>done') then
    raise exception 'the undo of call % may not go from % to %', old.txn, old.state, new.state using errcode = 'check_violation';
  end if;
  if new.state in ('due', 'running', 'done', 'failed')
    and not exists (select 1 from settlements where txn = new.txn and state = 'succeeded') then
    raise exception 'call % did not happen, so it is not undone', new.txn using errcode = 'check_violation';
  end if;
  return new;
end $function$;

CREATE OR REPLACE FUNCTION public.release_call_locks()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  delete from locks where holder = old.txn;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION public.release_locks()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  delete from locks where holder = new.id;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION public.write_notice()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
end $function$;

create table aliases (
  alias uuid not null,
  txn uuid not null,
  constraint aliases_pkey PRIMARY KEY (alias)
);

create table approvals (
  txn uuid not null,
  agent text not null,
  tool text not null,
  state text default 'pending'::text not null,
  shown text,
  groups text[] not null,
  quorum integer not null,
  approved_digest bytea,
  requested_at timestamp with time zone default now() not null,
  expires_at timestamp with time zone not null,
  decided_at timestamp with time zone,
  delay_ms double precision,
  leaves_at timestamp with time zone,
  constraint approvals_pkey PRIMARY KEY (txn),
  constraint approvals_delay_ms_check CHECK ((delay_ms > (0)::double precision)),
  constraint approvals_quorum_check CHECK ((quorum >= 1)),
  constraint approvals_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'approved'::text, 'rejected'::text, 'expired'::text, 'cancelled'::text, 'unopposed'::text]))),
  constraint decided_approvals_say_when CHECK (((decided_at IS NULL) = (state = 'pending'::text))),
  constraint unopposed_approvals_say_as_what CHECK (((state <> 'unopposed'::text) OR ((leaves_at IS NOT NULL) AND (approved_digest IS NOT NULL)))),
  constraint what_leaves_does_not_expire CHECK (((state <> 'expired'::text) OR (leaves_at IS NULL)))
);

create table audit_checkpoints (
  size bigint not null,
  note text not null,
  at timestamp with time zone default clock_timestamp() not null,
  constraint audit_checkpoints_pkey PRIMARY KEY (size),
  constraint audit_checkpoints_size_check CHECK ((size > 0))
);

create table audit_head (
  only_row boolean default true not null,
  size bigint default 0 not null,
  sealed_at timestamp with time zone default '-infinity'::timestamp with time zone not null,
  settled_id bigint default 0 not null,
  settling_id bigint default 0 not null,
  settling_xid xid8 default '0'::xid8 not null,
  settling_at timestamp with time zone default '-infinity'::timestamp with time zone not null,
  constraint audit_head_pkey PRIMARY KEY (only_row),
  constraint audit_head_only_row_check CHECK (only_row)
);

create table audit_log (
  index bigint not null,
  leaf bytea not null,
  entry text not null,
  constraint audit_log_pkey PRIMARY KEY (index),
  constraint audit_log_index_check CHECK ((index >= 0)),
  constraint audit_log_leaf_check CHECK ((octet_length(leaf) = 32))
);

create table audit_nodes (
  level integer not null,
  index bigint not null,
  hash bytea not null,
  constraint audit_nodes_pkey PRIMARY KEY (level, index),
  constraint audit_nodes_hash_check CHECK ((octet_length(hash) = 32)),
  constraint audit_nodes_index_check CHECK ((index >= 0)),
  constraint audit_nodes_level_check CHECK ((level > 0))
);

create table audit_queue (
  id bigint generated always as identity,
  entry text not null,
  constraint audit_queue_pkey PRIMARY KEY (id)
) with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0);

create table call_events (
  txn uuid not null,
  id bigint generated always as identity,
  event jsonb not null,
  constraint call_events_pkey PRIMARY KEY (txn, id)
);

create table calls (
  txn uuid not null,
  created_at timestamp with time zone default now() not null,
  key_lifetime_ms double precision,
  erased_at timestamp with time zone,
  kind call_kind not null,
  identity call_identity not null,
  ordinal integer,
  epoch integer,
  saga uuid,
  run uuid,
  undo_of uuid,
  agent text not null,
  tool text not null,
  fingerprint bytea not null,
  policy_version text not null,
  rule text,
  key text,
  depends_on uuid[],
  args text,
  request text,
  sealed bytea,
  undo text,
  constraint calls_pkey PRIMARY KEY (txn),
  constraint possible_call CHECK (((octet_length(fingerprint) = 32) AND ((ordinal IS NULL) OR (saga IS NOT NULL)) AND ((run IS NULL) = (epoch IS NULL))))
);

create table control_flag_version (
  only_row boolean default true not null,
  version bigint not null,
  constraint control_flag_version_pkey PRIMARY KEY (only_row),
  constraint control_flag_version_only_row_check CHECK (only_row)
);

create table control_flags (
  scope text not null,
  by text not null,
  reason text not null,
  at timestamp with time zone default now() not null,
  constraint control_flags_pkey PRIMARY KEY (scope)
);

create table deployment (
  only_row boolean default true not null,
  id uuid not null,
  created_at timestamp with time zone default now() not null,
  constraint deployment_pkey PRIMARY KEY (only_row),
  constraint deployment_only_row_check CHECK (only_row)
);

create table joins (
  txn uuid not null,
  agent text not null,
  joined_at timestamp with time zone default now() not null,
  constraint joins_pkey PRIMARY KEY (txn, agent)
);

create table limit_buckets (
  bucket text not null,
  constraint limit_buckets_pkey PRIMARY KEY (bucket)
);

create table lock_gates (
  gate text not null,
  constraint lock_gates_pkey PRIMARY KEY (gate)
);

create table locks (
  id bigint generated always as identity,
  resource text not null,
  holder uuid not null,
  of text not null,
  mode text not null,
  token bigint not null,
  shown text not null,
  txn uuid not null,
  agent text not null,
  tool text not null,
  taken_at timestamp with time zone default now() not null,
  constraint locks_pkey PRIMARY KEY (resource, holder),
  constraint locks_mode_check CHECK ((mode = ANY (ARRAY['shared'::text, 'exclusive'::text]))),
  constraint locks_of_check CHECK ((of = ANY (ARRAY['call'::text, 'saga'::text, 'run'::text])))
);

create table notices (
  id uuid default gen_random_uuid() not null,
  txn uuid not null,
  kind text not null,
  body text not null,
  created_at timestamp with time zone default now() not null,
  due_at timestamp with time zone default now() not null,
  tries integer default 0 not null,
  constraint notices_pkey PRIMARY KEY (id),
  constraint notices_kind_check CHECK ((kind = ANY (ARRAY['held'::text, 'approved'::text, 'rejected'::text, 'expired'::text, 'cancelled'::text, 'unopposed'::text]))),
  constraint notices_tries_check CHECK ((tries >= 0))
);

create table open_calls (
  txn uuid not null,
  owner uuid,
  due_at timestamp with time zone,
  run uuid,
  state open_state not null,
  fence integer not null,
  update_number integer default 0 not null,
  attempt integer default 0 not null,
  unresolved integer default 0 not null,
  round_from integer default 0 not null,
  owner_deaths integer default 0 not null,
  attempt_open boolean default false not null,
  recalled boolean default false not null,
  fenced boolean default false not null,
  retry_requested boolean default false not null,
  round_at timestamp with time zone default now() not null,
  first_sent_at timestamp with time zone,
  unknown_since timestamp with time zone,
  lock_token bigint,
  detail text,
  attempt_detail text,
  disproved_by text,
  retried_by text,
  former_owners uuid[],
  constraint open_calls_pkey PRIMARY KEY (txn),
  constraint possible_open_call CHECK (((unresolved >= 0) AND (unresolved <= attempt) AND ((attempt > 0) = (state = ANY (ARRAY['sending'::open_state, 'running'::open_state, 'in_doubt'::open_state]))) AND (recalled OR (NOT fenced))))
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0);

create table pins (
  upstream text not null,
  tool text not null,
  digest bytea not null,
  definition text not null,
  pinned_at timestamp with time zone default now() not null,
  accepted_by text,
  offered_digest bytea,
  offered text,
  offered_at timestamp with time zone,
  constraint pins_pkey PRIMARY KEY (upstream, tool),
  constraint an_offer_differs CHECK ((offered_digest <> digest)),
  constraint an_offer_is_whole CHECK ((((offered IS NULL) = (offered_digest IS NULL)) AND ((offered IS NULL) = (offered_at IS NULL)))),
  constraint pins_digest_check CHECK ((octet_length(digest) = 32)),
  constraint pins_offered_digest_check CHECK ((octet_length(offered_digest) = 32))
);

create table processes (
  id uuid not null,
  host text not null,
  pid integer not null,
  pid_started text not null,
  started_at timestamp with time zone default now() not null,
  lease_until timestamp with time zone not null,
  ended_at timestamp with time zone,
  control_flags_seen bigint default 0 not null,
  schema_version integer default 0 not null,
  constraint processes_pkey PRIMARY KEY (id)
);

create table repeats (
  slot uuid not null,
  generation integer not null,
  txn uuid not null,
  delivered_at timestamp with time zone,
  constraint repeats_pkey PRIMARY KEY (slot)
);

create table run_takes (
  run uuid not null,
  key text not null,
  epoch integer not null,
  constraint run_takes_pkey PRIMARY KEY (run, key),
  constraint run_takes_epoch_check CHECK ((epoch >= 1))
);

create table runs (
  id uuid not null,
  agent text not null,
  name text not null,
  epoch integer default 0 not null,
  created_at timestamp with time zone default now() not null,
  taken_at timestamp with time zone default now() not null,
  ttl_ms double precision,
  heartbeat_at timestamp with time zone,
  checkpoint text,
  checkpoint_at timestamp with time zone,
  ended_at timestamp with time zone,
  constraint runs_pkey PRIMARY KEY (id),
  constraint checkpoints_have_a_time CHECK (((checkpoint IS NULL) = (checkpoint_at IS NULL))),
  constraint runs_epoch_check CHECK ((epoch >= 0)),
  constraint runs_ttl_ms_check CHECK ((ttl_ms > (0)::double precision))
);

create table sagas (
  id uuid not null,
  agent text not null,
  name text,
  key text,
  asked bytea not null,
  state text default 'open'::text not null,
  reason text,
  by text,
  steps integer default 0 not null,
  keep integer,
  created_at timestamp with time zone default now() not null,
  expires_at timestamp with time zone,
  on_expire text default 'rollback'::text not null,
  ended_at timestamp with time zone,
  plan text,
  constraint sagas_pkey PRIMARY KEY (id),
  constraint a_rollback_knows_its_reach CHECK (((keep IS NOT NULL) OR (state <> ALL (ARRAY['rolling_back'::text, 'rolled_back'::text])))),
  constraint ended_sagas_say_when CHECK (((ended_at IS NOT NULL) = (state = ANY (ARRAY['committed'::text, 'rolled_back'::text, 'closed'::text])))),
  constraint sagas_keep_check CHECK ((keep >= '-1'::integer)),
  constraint sagas_on_expire_check CHECK ((on_expire = ANY (ARRAY['rollback'::text, 'park'::text]))),
  constraint sagas_state_check CHECK ((state = ANY (ARRAY['open'::text, 'committed'::text, 'rolling_back'::text, 'rolled_back'::text, 'parked'::text, 'closed'::text]))),
  constraint sagas_steps_check CHECK ((steps >= 0))
);

create table savepoints (
  saga uuid not null,
  name text not null,
  after integer not null,
  at timestamp with time zone default now() not null,
  constraint savepoints_pkey PRIMARY KEY (saga, name),
  constraint savepoints_after_check CHECK ((after >= 0))
);

create table schema_migrations (
  version integer not null,
  name text not null,
  sha256 text not null,
  applied_at timestamp with time zone default now() not null,
  constraint schema_migrations_pkey PRIMARY KEY (version)
);

create table settlements (
  txn uuid not null,
  settled_at timestamp with time zone default now() not null,
  first_sent_at timestamp with time zone,
  unknown_since timestamp with time zone,
  lock_token bigint,
  state final_state not null,
  evidence call_evidence not null,
  attempt integer not null,
  owner_deaths integer default 0 not null,
  leaf bytea,
  outcome text,
  problem text,
  resolved_by text,
  retried_by text,
  detail text,
  answer text,
  constraint settlements_pkey PRIMARY KEY (txn),
  constraint possible_settlement CHECK ((((problem IS NULL) = (state = 'succeeded'::final_state)) AND ((attempt = 0) OR (state = ANY (ARRAY['succeeded'::final_state, 'failed'::final_state])))))
);

create table spends (
  bucket text not null,
  at timestamp with time zone default clock_timestamp() not null,
  txn uuid not null,
  amount double precision not null,
  constraint spends_amount_check CHECK ((amount >= (0)::double precision))
);

create table sweep_later (
  txn uuid not null,
  constraint sweep_later_pkey PRIMARY KEY (txn)
);

create table sweeps (
  name text not null,
  through_at timestamp with time zone not null,
  constraint sweeps_pkey PRIMARY KEY (name)
);

create table taints (
  of text not null,
  holder text not null,
  txn uuid,
  tool text not null,
  at timestamp with time zone default now() not null,
  constraint taints_pkey PRIMARY KEY (holder, of),
  constraint taints_of_check CHECK ((of = ANY (ARRAY['agent'::text, 'run'::text, 'saga'::text])))
);

create table undo_work (
  id uuid not null,
  of text not null,
  due_at timestamp with time zone not null,
  constraint undo_work_pkey PRIMARY KEY (id),
  constraint undo_work_of_check CHECK ((of = ANY (ARRAY['saga'::text, 'call'::text])))
);

create table undos (
  txn uuid not null,
  state undo_state default 'none'::undo_state not null,
  tries integer default 0 not null,
  tries_from integer default 0 not null,
  waived boolean default false not null,
  since timestamp with time zone,
  due_at timestamp with time zone,
  undo_txn uuid,
  reason text,
  doubt text,
  before text,
  args text,
  sealed bytea,
  constraint undos_pkey PRIMARY KEY (txn),
  constraint running_undos_have_a_txn CHECK (((undo_txn IS NOT NULL) OR (state <> ALL (ARRAY['running'::undo_state, 'done'::undo_state]))))
) with (fillfactor=70);

create table votes (
  txn uuid not null,
  person text not null,
  verdict text not null,
  digest bytea not null,
  reason text not null,
  at timestamp with time zone default now() not null,
  constraint votes_pkey PRIMARY KEY (txn, person),
  constraint votes_verdict_check CHECK ((verdict = ANY (ARRAY['approve'::text, 'reject'::text])))
);

CREATE INDEX aliases_by_txn ON public.aliases USING btree (txn);

CREATE INDEX approvals_by_time ON public.approvals USING btree (requested_at, txn);

CREATE INDEX approvals_pending ON public.approvals USING btree (agent) WHERE (state = 'pending'::text);

CREATE INDEX audit_log_by_leaf ON public.audit_log USING hash (leaf);

CREATE UNIQUE INDEX one_contradiction ON public.call_events USING btree (txn) WHERE ((event ->> 'what'::text) = 'contradiction'::text);

CREATE INDEX calls_by_agent ON public.calls USING btree (agent, created_at, txn);

CREATE INDEX calls_by_run ON public.calls USING btree (run, created_at, txn) WHERE (run IS NOT NULL);

CREATE UNIQUE INDEX calls_by_saga ON public.calls USING btree (saga, ordinal) WHERE (saga IS NOT NULL);

CREATE INDEX calls_by_time ON public.calls USING btree (created_at, txn);

CREATE INDEX locks_by_holder ON public.locks USING btree (holder);

CREATE UNIQUE INDEX locks_by_id ON public.locks USING btree (id);

CREATE INDEX notices_by_due ON public.notices USING btree (due_at);

CREATE INDEX notices_by_txn ON public.notices USING btree (txn);

CREATE INDEX open_calls_by_due ON public.open_calls USING btree (due_at) WHERE ((owner IS NULL) AND (due_at IS NOT NULL));

CREATE INDEX open_calls_by_owner ON public.open_calls USING btree (owner) WHERE (owner IS NOT NULL);

CREATE INDEX open_calls_by_run ON public.open_calls USING btree (run) WHERE (run IS NOT NULL);

CREATE INDEX runs_by_agent ON public.runs USING btree (agent, created_at, id);

CREATE INDEX runs_by_time ON public.runs USING btree (created_at, id);

CREATE INDEX runs_unfinished ON public.runs USING btree (agent, id) WHERE (ended_at IS NULL);

CREATE INDEX runs_watched ON public.runs USING btree (created_at, id) WHERE ((ended_at IS NULL) AND (ttl_ms IS NOT NULL));

CREATE INDEX sagas_by_agent ON public.sagas USING btree (agent, created_at, id);

CREATE INDEX sagas_by_state ON public.sagas USING btree (state, created_at, id);

CREATE INDEX sagas_by_time ON public.sagas USING btree (created_at, id);

CREATE INDEX spends_by_time ON public.spends USING btree (bucket, at);

CREATE INDEX spends_by_txn ON public.spends USING btree (txn);

CREATE INDEX undo_work_by_due ON public.undo_work USING btree (due_at);

alter table run_takes add constraint run_takes_run_fkey FOREIGN KEY (run) REFERENCES runs(id) ON DELETE CASCADE;

alter table savepoints add constraint savepoints_saga_fkey FOREIGN KEY (saga) REFERENCES sagas(id) ON DELETE CASCADE;

CREATE TRIGGER approvals_decided AFTER UPDATE OF state ON public.approvals FOR EACH ROW WHEN ((old.state <> new.state)) EXECUTE FUNCTION write_notice();

CREATE TRIGGER approvals_held AFTER INSERT ON public.approvals FOR EACH ROW EXECUTE FUNCTION write_notice();

CREATE TRIGGER audit_checkpoints_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.audit_checkpoints FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_log();

CREATE TRIGGER audit_log_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.audit_log FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_log();

CREATE TRIGGER audit_nodes_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.audit_nodes FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_log();

CREATE TRIGGER audit_queue_append_only BEFORE UPDATE OR TRUNCATE ON public.audit_queue FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_log();

CREATE TRIGGER audit_queue_kept BEFORE DELETE ON public.audit_queue FOR EACH STATEMENT EXECUTE FUNCTION refuse_loss_of_leaves();

CREATE TRIGGER call_events_immutable BEFORE UPDATE ON public.call_events FOR EACH ROW EXECUTE FUNCTION refuse_rewrite_of_event();

CREATE TRIGGER calls_immutable BEFORE UPDATE ON public.calls FOR EACH ROW EXECUTE FUNCTION refuse_rewrite_of_call();

CREATE TRIGGER open_calls_locks AFTER DELETE ON public.open_calls FOR EACH ROW WHEN ((old.lock_token IS NOT NULL)) EXECUTE FUNCTION release_call_locks();

CREATE TRIGGER open_calls_transitions BEFORE UPDATE ON public.open_calls FOR EACH ROW EXECUTE FUNCTION refuse_open_call_transition();

CREATE TRIGGER processes_version BEFORE INSERT ON public.processes FOR EACH ROW WHEN ((new.schema_version < 20)) EXECUTE FUNCTION refuse_older_replica();

CREATE TRIGGER runs_impossible BEFORE UPDATE ON public.runs FOR EACH ROW WHEN (((new.epoch < old.epoch) OR (new.id <> old.id) OR (new.agent <> old.agent) OR (new.name <> old.name))) EXECUTE FUNCTION refuse_run_rewrite();

CREATE TRIGGER runs_locks AFTER UPDATE ON public.runs FOR EACH ROW WHEN (((old.ended_at IS NULL) AND (new.ended_at IS NOT NULL))) EXECUTE FUNCTION release_locks();

CREATE TRIGGER sagas_locks AFTER UPDATE ON public.sagas FOR EACH ROW WHEN (((old.ended_at IS NULL) AND (new.ended_at IS NOT NULL))) EXECUTE FUNCTION release_locks();

CREATE TRIGGER sagas_transitions BEFORE UPDATE ON public.sagas FOR EACH ROW WHEN (((old.state <> new.state) AND (((old.state || '>'::text) || new.state) <> ALL (ARRAY['open>committed'::text, 'open>rolling_back'::text, 'open>parked'::text, 'rolling_back>rolled_back'::text, 'rolling_back>parked'::text, 'rolling_back>open'::text, 'parked>rolling_back'::text, 'parked>closed'::text])))) EXECUTE FUNCTION refuse_saga_transition();

CREATE TRIGGER settlements_immutable BEFORE UPDATE ON public.settlements FOR EACH ROW EXECUTE FUNCTION refuse_rewrite_of_settlement();

CREATE TRIGGER undos_transitions BEFORE INSERT OR UPDATE ON public.undos FOR EACH ROW EXECUTE FUNCTION refuse_undo_transition();

create view audit_entries as
 SELECT audit_log.index,
    NULL::bigint AS id,
    audit_log.entry
   FROM audit_log
UNION ALL
 SELECT NULL::bigint AS index,
    audit_queue.id,
    audit_queue.entry
   FROM audit_queue;
