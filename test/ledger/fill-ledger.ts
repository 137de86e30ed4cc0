import type pg from 'pg';

/** Column expressions over `i`, the number of the call. They replace those of `COMMON`. */
type Columns = Readonly<Record<string, string>>;

interface Profile {
  /** How many of a thousand calls are like this. */
  readonly share: number;
  readonly columns: Columns;
}

const BODY = `repeat(md5(i::text), 32)`;
const ANSWER = `'{"status":200,"headers":{"content-type":"application/json"},"body":"' || ${BODY} || '"}'`;
const CREATED_AT = `now() - (i * 7919 % 1000000) * interval '1 s'`;
const SETTLED_AT = `${CREATED_AT} + interval '2 s'`;
const REFUSED = `'{"status":422,"body":"' || ${BODY} || '"}'`;

const COMMON: Columns = {
  txn: `md5('call' || i)::uuid`,
  agent: `'agent-' || i % 50`,
  tool: `'shop.tool_' || i % 20`,
  key: `'order-' || i`,
  identity: `'key'`,
  fingerprint: `sha256(i::text::bytea)`,
  kind: `'key'`,
  fence: `1 + (i * 31 % 1000000)::int`,
  step: '2',
  created_at: CREATED_AT,
  round_at: CREATED_AT,
  key_lifetime_ms: '86400000',
  policy_version: `md5((i % 7)::text)`,
  rule: `'agents.shop.rules[' || i % 3 || ']'`,
  args: `'{"amount":' || i || ',"currency":"usd","note":"é ' || md5(i::text) || '"}'`,
  request: `'{"method":"POST","url":"https://shop.example/v1/charge","body":"{\\"amount\\":' || i || '}"}'`,
};
const SENT: Columns = { attempt: '1', first_sent_at: `${CREATED_AT} + interval '3 ms'` };
const FINAL: Columns = {
  settled_at: SETTLED_AT,
  delivered_at: `${SETTLED_AT} + interval '1 ms'`,
  leaf: `sha256(('leaf' || i)::bytea)`,
};
const SUCCEEDED: Columns = {
  ...SENT,
  ...FINAL,
  state: `'succeeded'`,
  outcome: `'answered'`,
  evidence: `'answer'`,
  answer: ANSWER,
};
const FAILED: Columns = {
  ...SENT,
  ...FINAL,
  state: `'failed'`,
  problem: `'upstream_refused'`,
  detail: `'The upstream answered 422.'`,
  evidence: `'answer'`,
  answer: REFUSED,
  attempt_detail: `'answered 422'`,
};
const UNSENT: Columns = { ...FINAL, evidence: 'null', first_sent_at: 'null', request: 'null' };
const DOUBT: Columns = {
  ...SENT,
  attempt: '2',
  unresolved: '1',
  state: `'in_doubt'`,
  unknown_since: `${CREATED_AT} + interval '1 s'`,
  attempt_detail: `'the socket closed after the first byte'`,
  owner_deaths: 'i % 3',
  events: `jsonb_build_array(
    jsonb_build_object('at', ${CREATED_AT}, 'what', 'attempt_ended', 'attempt', 1, 'detail', 'timed out'),
    jsonb_build_object('at', ${CREATED_AT}, 'what', 'taken_over', 'attempt', 2, 'from', md5('process' || i % 4)::uuid),
    jsonb_build_object('at', ${CREATED_AT}, 'what', 'in_doubt', 'attempt', 2, 'told', 'the socket closed after the first byte'))`,
};
const ERASED: Columns = {
  key: 'null',
  args: 'null',
  request: 'null',
  answer: 'null',
  detail: 'null',
  attempt_detail: 'null',
  erased_at: `${SETTLED_AT} + interval '30 days'`,
};

/** The saga of a step, its place in it, and what became of its undo, by the kind of saga. */
const SAGA_NUMBER = '(i / 10)';
const ORDINAL = '(i % 10 + 1)::int';
const MIXED_UNDOS = `(array['due','running','done','failed','failed','failed','skipped','irreversible','done','none'])[${ORDINAL}]`;
const UNDO_STATE = `case when ${SAGA_NUMBER} % 8 in (0, 1, 7) then 'none' when ${SAGA_NUMBER} % 8 in (3, 6) then
  case when ${ORDINAL} = 10 then 'skipped' else 'done' end else ${MIXED_UNDOS} end`;
/** Some undos failed before a compensation was claimed. */
const UNDO_TXN = `case when (${UNDO_STATE}) in ('running', 'done') or ((${UNDO_STATE}) = 'failed' and ${ORDINAL} <> 6)
  then md5('undo' || i)::uuid end`;
const SAGA_STATE = `(array['open','committed','rolling_back','rolled_back','parked','closed','rolled_back','open'])[s % 8 + 1]`;
const STEP: Columns = {
  ...SUCCEEDED,
  agent: `'agent-1'`,
  saga: `md5('saga' || ${SAGA_NUMBER})::uuid`,
  ordinal: ORDINAL,
  depends_on: `case when ${ORDINAL} > 1 then array[md5('call' || i - 1)::uuid] end`,
  undo: `'{"kind":"compensable","tool":"shop.refund","args":{"charge":"$result.id"}}'`,
  undo_args: `'{"charge":"ch_' || i || '"}'`,
  undo_sealed: `case when i % 5 = 0 then sha256(('sealed' || i)::bytea) end`,
  before: `case when i % 4 = 0 then '{"balance":' || i || '}' end`,
  recalled: `${SAGA_NUMBER} % 8 in (2, 3, 6)`,
  undo_state: UNDO_STATE,
  undo_txn: UNDO_TXN,
  undo_tries: `case when (${UNDO_TXN}) is null then 0 else 1 + (i % 3)::int end`,
  undo_from: `case when (${UNDO_STATE}) = 'failed' then 1 else 0 end`,
  undo_since: `case when (${UNDO_STATE}) not in ('none', 'skipped', 'irreversible') then ${SETTLED_AT} + interval '1 minute' end`,
  undo_due_at: `case when (${UNDO_STATE}) in ('due', 'failed') then ${SETTLED_AT} + interval '2 minutes' end`,
  undo_reason: `case (${UNDO_STATE}) when 'failed' then 'in doubt, a person must resolve it' when 'skipped' then 'it had no effect' end`,
  undo_doubt: `case when (${UNDO_STATE}) = 'failed' then 'person' end`,
  waived: `(${UNDO_STATE}) = 'failed' and i % 7 = 0`,
};

const PROFILES: readonly Profile[] = [
  { share: 500, columns: SUCCEEDED },
  { share: 20, columns: { ...SUCCEEDED, kind: `'read'`, key_lifetime_ms: 'null' } },
  {
    share: 30,
    columns: {
      ...SUCCEEDED,
      attempt: '3',
      unresolved: '1',
      evidence: `'same_key'`,
      owner_deaths: '1',
      events: DOUBT['events'] ?? '',
    },
  },
  {
    share: 10,
    columns: {
      ...SUCCEEDED,
      kind: `'none'`,
      evidence: `'person'`,
      unresolved: '1',
      resolved_by: `'ann'`,
      verdict: `'applied'`,
      contradiction: `case when i % 10 = 0 then 'a late answer says 409' end`,
      events: DOUBT['events'] ?? '',
    },
  },
  { share: 10, columns: { ...FAILED, kind: `'probe'`, evidence: `'probe'`, disproved_by: `'probe'`, attempt: '2' } },
  // Half of them were never delivered, so an equal request counts as a retry.
  {
    share: 60,
    columns: {
      ...SUCCEEDED,
      key: 'null',
      identity: `'repeat'`,
      delivered_at: `case when i % 2 = 0 then ${SETTLED_AT} end`,
    },
  },
  { share: 10, columns: { ...SUCCEEDED, identity: `'shared'`, kind: `'idempotent'` } },
  { share: 80, columns: FAILED },
  { share: 10, columns: { ...UNSENT, state: `'failed'`, problem: `'upstream_unreachable'`, evidence: `'gateway'` } },
  { share: 15, columns: { ...UNSENT, state: `'rejected'`, problem: `'approval_rejected'`, resolved_by: `'ann'` } },
  { share: 10, columns: { ...UNSENT, state: `'expired'`, problem: `'approval_expired'` } },
  { share: 10, columns: { ...UNSENT, state: `'cancelled'`, problem: `'cancelled'`, recalled: 'true' } },
  { share: 60, columns: { ...SUCCEEDED, ...ERASED } },
  { share: 30, columns: { ...FAILED, ...ERASED } },
  { share: 20, columns: { ...SUCCEEDED, run: `md5('run' || i % 100)::uuid`, epoch: '1 + (i % 3)::int' } },
  {
    share: 5,
    columns: {
      ...UNSENT,
      state: `'cancelled'`,
      problem: `'fenced'`,
      run: `md5('run' || i % 100)::uuid`,
      epoch: '1',
      recalled: 'true',
      fenced: 'true',
    },
  },
  { share: 10, columns: { ...SUCCEEDED, lock_token: 'i', sealed: `sha256(('sealed' || i)::bytea)` } },
  {
    share: 5,
    columns: { ...SENT, state: `'sending'`, attempt_open: 'true', lock_token: 'case when i % 2 = 0 then i end' },
  },
  { share: 5, columns: { ...DOUBT, kind: `'none'` } },
  { share: 3, columns: { ...DOUBT, kind: `'probe'`, disproved_by: `'probe'` } },
  {
    share: 2,
    columns: { ...DOUBT, verdict: `'retry'`, retry_requested: 'true', round_from: '2', resolved_by: `'ann'` },
  },
  { share: 10, columns: { state: `'held'`, request: 'null', step: '0' } },
  { share: 5, columns: { state: `'ready'`, step: '1', run: `md5('run' || i % 100)::uuid`, epoch: '1' } },
  { share: 70, columns: STEP },
  {
    share: 10,
    columns: {
      ...STEP,
      ...ERASED,
      undo: 'null',
      undo_args: 'null',
      undo_sealed: 'null',
      before: 'null',
      undo_reason: 'null',
    },
  },
];

/**
 * Fills an empty ledger at migration 0019 with about `count` calls in every state, and with what belongs to them. Everything is
 * derived from the number of the call, so two fills differ only in their times. No process is alive.
 */
export async function fillLedger(client: pg.Client, count: number): Promise<void> {
  await client.query(`insert into processes (id, host, pid, pid_started, lease_until, ended_at)
    select md5('process' || p)::uuid, 'elsewhere', p, '1', now() - interval '1 minute', case when p % 2 = 0 then now() end
    from generate_series(0, 3) p`);
  const shares = PROFILES.reduce((sum, { share }) => sum + share, 0);
  let from = 0;
  for (const { share, columns } of PROFILES) {
    // Whole sagas of ten steps begin at a multiple of ten.
    const until = from + 10 * Math.max(1, Math.round((count * share) / shares / 10));
    await insertCalls(client, `generate_series(${from}::bigint, ${until - 1}) i`, { ...COMMON, ...columns });
    if ('saga' in columns) await insertSagas(client, from / 10, until / 10 - 1);
    from = until;
  }
  await insertCompensations(client);
  for (const statement of RELATED) await client.query(statement);
  await client.query('analyze');
}

async function insertCalls(client: pg.Client, source: string, columns: Columns): Promise<void> {
  await client.query(
    `insert into calls (${Object.keys(columns).join(', ')}) select ${Object.values(columns).join(', ')} from ${source}`,
  );
}

async function insertSagas(client: pg.Client, first: number, last: number): Promise<void> {
  await client.query(`insert into sagas (id, agent, name, asked, state, steps, keep, ended_at)
    select md5('saga' || s)::uuid, 'agent-1', 'saga ' || s, sha256(s::text::bytea), state, 10,
      case when state in ('rolling_back', 'rolled_back', 'parked', 'closed') then -1 end,
      case when state in ('committed', 'rolled_back', 'closed') then now() end
    from generate_series(${first}::bigint, ${last}) s, lateral (select ${SAGA_STATE} as state) of_saga`);
}

/** The compensations of steps whose undo is running, done or in doubt. */
async function insertCompensations(client: pg.Client): Promise<void> {
  const source = (condition: string) =>
    `(select s.*, row_number() over (order by s.txn) as i from calls s where s.undo_txn is not null and ${condition}) s`;
  const common: Columns = {
    ...COMMON,
    txn: 's.undo_txn',
    agent: 's.agent',
    tool: `'shop.refund'`,
    key: 'null',
    identity: `'undo'`,
    saga: 's.saga',
    undo_of: 's.txn',
  };
  await insertCalls(client, source(`s.undo_state = 'done'`), { ...SUCCEEDED, ...common });
  await insertCalls(client, source(`s.undo_state = 'running'`), {
    ...SENT,
    ...common,
    state: `'sending'`,
    attempt_open: 'true',
  });
  await insertCalls(client, source(`s.undo_state = 'failed'`), { ...DOUBT, ...common });
}

/** What else belongs to the calls. */
const RELATED = [
  `insert into open_calls (txn, owner, due_at, run, locked)
    select txn, case when state = 'sending' then md5('process' || fence % 4)::uuid end,
      case when state in ('held', 'ready') or (state = 'in_doubt' and kind <> 'none') then created_at + interval '40 days' end,
      run, lock_token is not null
    from calls where settled_at is null`,
  `insert into repeats (slot, generation, txn)
    select md5('slot' || txn)::uuid, 1 + fence % 3, txn from calls where identity = 'repeat'`,
  `insert into joins (txn, agent) select txn, 'agent-joined' from calls where identity = 'shared'`,
  `insert into aliases (alias, txn) select md5('alias' || txn)::uuid, txn from calls where identity = 'shared'`,
  `insert into approvals (txn, agent, tool, shown, groups, quorum, expires_at, state, decided_at)
    select txn, agent, tool, args, array['ops'], 1, created_at + interval '40 days',
      case state when 'held' then 'pending' else state end, settled_at
    from calls where state in ('held', 'rejected', 'expired')`,
  `insert into locks (resource, holder, of, mode, token, shown, txn, agent, tool)
    select 'account/' || txn, txn, 'call', 'exclusive', lock_token, 'account', txn, agent, tool
    from calls where lock_token is not null and settled_at is null`,
  `insert into runs (id, agent, name, epoch) select md5('run' || r)::uuid, 'agent-1', 'run ' || r, 3 from generate_series(0, 99) r`,
  `insert into undo_work (id, of, due_at) select id, 'saga', now() + interval '1 day' from sagas where state in ('rolling_back', 'parked')`,
  `insert into sweep_later (txn) select txn from calls where settled_at is null`,
];
