-- Columns for facts that the gateway decides by. Before, it read them from sentences and from the timeline, which are for people.
-- See docs/adr/0047-decisions-read-columns.md.

alter table calls
  -- The result of the newest attempt in words; null while it is not known.
  add column attempt_detail text,
  -- The evidence that disproved the unknown attempts: `probe` or `observation`.
  add column disproved_by text,
  -- The last verdict of a person: `applied`, `not_applied` or `retry`.
  add column verdict text,
  -- A person asked for a retry, and the retry has not led to another doubt.
  add column retry_requested boolean not null default false,
  -- Why an undo is `failed` although its outcome is unknown: `person` must resolve the doubt, or the `gateway` is finding out.
  add column undo_doubt text;

-- The trigger refuses nothing of this. It is off because it would check every row again.
alter table calls disable trigger calls_impossible;

update calls set undo_doubt = case when undo_reason like 'in doubt, a person must resolve it%' then 'person' else 'gateway' end
where undo_state = 'failed' and undo_reason like 'in doubt, %';

update calls c set verdict = v.verdict,
  retry_requested = v.verdict = 'retry' and c.settled_at is null and (c.attempt_open or v.is_last)
from calls d cross join lateral (
  select e.event->>'verdict' as verdict, e.place = jsonb_array_length(d.events) as is_last
  from jsonb_array_elements(d.events) with ordinality as e(event, place)
  where e.event->>'what' = 'verdict' order by e.place desc limit 1
) v
where d.events <> '[]' and c.txn = d.txn;

update calls c set disproved_by = f.disproved_by, attempt_detail = coalesce(f.detail, case when f.taken_over then 'the process that sent it ended' end)
from calls d cross join lateral (
  select
    (array_agg(case e.event->>'what' when 'probe_not_applied' then 'probe' when 'observed_not_satisfied' then 'observation' end order by e.place desc)
      filter (where e.event->>'what' in ('probe_not_applied', 'observed_not_satisfied', 'verdict')))[1] as disproved_by,
    (array_agg(coalesce(e.event->>'told', e.event->>'detail') order by e.place desc) filter (where e.event->>'attempt' = d.attempt::text
      and (e.event ? 'told' or (e.event->>'what' = 'attempt_ended' and e.event ? 'detail'))))[1] as detail,
    bool_or(e.event->>'what' = 'taken_over' and e.event->>'attempt' = d.attempt::text) as taken_over
  from jsonb_array_elements(d.events) with ordinality as e(event, place)
) f
where d.settled_at is null and d.events <> '[]' and c.txn = d.txn;

alter table calls enable trigger calls_impossible;

-- A gateway of an older version goes on writing `change_row`, so that type stays.
create type change_row_2 as (
  txn            uuid,
  fence          integer,
  evident        boolean,
  state          text,
  attempt        integer,
  attempt_open   boolean,
  unresolved     integer,
  unknown_ms     double precision,
  custody        text,
  due_ms         double precision,
  outcome        text,
  problem        text,
  detail         text,
  answer         text,
  evidence       text,
  resolved_by    text,
  leaf           bytea,
  event          text,
  entry          text,
  step           integer,
  before         text,
  undo_args      text,
  undo_sealed    bytea,
  undo_reason    text,
  attempt_detail text,
  disproved_by   text
);
