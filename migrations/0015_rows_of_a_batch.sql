-- What a batch of claims, or of changes, brings to PostgreSQL: one array of rows instead of one array for each column. Taking
-- fifty arrays apart was a fifth of what a lone call cost it. See docs/adr/0042-a-batch-is-an-array-of-rows.md.
--
-- A gateway of an older version goes on writing to these while a newer one starts beside it, so a type never changes: whoever
-- needs another column creates `claim_row_2` and leaves this one behind.

create type claim_row as (
  txn            uuid,
  agent          text,
  tool           text,
  key            text,
  identity       text,
  fingerprint    bytea,
  kind           text,
  state          text,
  owner          uuid,
  due_ms         double precision,
  lifetime_ms    double precision,
  policy_version text,
  rule           text,
  args           text,
  request        text,
  sealed         bytea,
  entry          text,
  fence          integer,
  saga           uuid,
  depends_on     text,
  undo           text,
  undo_of        uuid,
  tries          integer,
  place          integer,
  run            uuid,
  epoch          integer
);

create type change_row as (
  txn          uuid,
  fence        integer,
  evident      boolean,
  state        text,
  attempt      integer,
  attempt_open boolean,
  unresolved   integer,
  unknown_ms   double precision,
  custody      text,
  due_ms       double precision,
  outcome      text,
  problem      text,
  detail       text,
  answer       text,
  evidence     text,
  resolved_by  text,
  leaf         bytea,
  event        text,
  entry        text,
  step         integer,
  before       text,
  undo_args    text,
  undo_sealed  bytea,
  undo_reason  text
);
