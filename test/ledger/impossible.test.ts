import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { insertEndedCall, insertIntent, insertOpenCall, insertRow } from '../support/call-rows.ts';
import { useDatabase } from '../support/use-gateway.ts';

const database = useDatabase();

type Write = () => Promise<unknown>;
type Columns = Readonly<Record<string, unknown>>;
/** A write that the rule refuses, and a similar one that it accepts. */
type Example = readonly [name: string, refused: Write, accepted: Write];

const compare = (
  name: string,
  insert: (columns: Columns) => Promise<unknown>,
  refused: Columns,
  accepted: Columns,
): Example => [name, () => insert(refused), () => insert(accepted)];

const intent = (name: string, refused: Columns, accepted: Columns) =>
  compare(name, (columns) => insertIntent(database, columns), refused, accepted);
const openCall = (name: string, refused: Columns, accepted: Columns) =>
  compare(name, (columns) => insertOpenCall(database, columns), refused, accepted);
const outcome = (name: string, refused: Columns, accepted: Columns) =>
  compare(name, (columns) => insertEndedCall(database, columns), refused, accepted);
const undo = (name: string, refused: Columns, accepted: Columns) => compare(name, insertUndo, refused, accepted);

async function insertUndo(columns: Columns): Promise<string> {
  const txn = await insertEndedCall(database);
  await insertRow(database, 'undos', { txn, ...columns });
  return txn;
}

/** Changes one row, given as a new call each time. */
function update(name: string, table: string, make: () => Promise<string>, refused: string, accepted: string): Example {
  const write = (change: string) => async () => {
    const rows = await database.query(`update ${table} set ${change} where txn = $1 returning txn`, [await make()]);
    expect(rows).toHaveLength(1);
  };
  return [name, write(refused), write(accepted)];
}

const SAGA = randomUUID();
const RUN = randomUUID();

const filledIntent = () =>
  insertIntent(database, { key: 'k', args: '{}', request: '{}', sealed: Buffer.from('s'), undo: '{}', rule: 'r' });
const filledOutcome = () => insertEndedCall(database, { answer: '{"a":1}', detail: 'd', leaf: Buffer.alloc(32) });
const heldCall = () => insertOpenCall(database, { state: 'held' });
const sentCall = () => insertOpenCall(database, { fence: 7 });
const dueUndo = () => insertUndo({ state: 'due', undo_txn: randomUUID() });

async function insertEvent(): Promise<string> {
  const txn = await insertEndedCall(database);
  await insertRow(database, 'call_events', { txn, event: { at: 'now', what: 'vote', person: 'p' } });
  return txn;
}

async function insertFailedUndo(state: string): Promise<void> {
  await insertRow(database, 'undos', { txn: await insertEndedCall(database, { state: 'failed' }), state });
}

/** A second row for the same call is refused; one for another call is accepted. */
function duplicate(table: string, columns: Columns): Example {
  const insert = async (txn: string) => insertRow(database, table, { txn, ...columns });
  return [
    'a second row',
    async () => {
      const txn = randomUUID();
      await insert(txn);
      await insert(txn);
    },
    () => insert(randomUUID()),
  ];
}

const INTENT = {
  agent: 'a',
  tool: 't',
  identity: 'key',
  fingerprint: Buffer.alloc(32),
  kind: 'key',
  policy_version: 'v',
};

const CONSTRAINTS: Readonly<Record<string, readonly Example[]>> = {
  calls_pkey: [duplicate('calls', INTENT)],
  open_calls_pkey: [duplicate('open_calls', { state: 'held', fence: 1 })],
  settlements_pkey: [duplicate('settlements', { state: 'succeeded', evidence: 'answer', attempt: 1 })],
  undos_pkey: [duplicate('undos', {})],
  call_events_pkey: [
    [
      'a second event with the same number',
      () =>
        database.query(
          `with numbered(txn, id) as (values ($1::uuid, 1), ($1::uuid, 1))
          insert into call_events (txn, id, event) overriding system value select txn, id, '{}' from numbered`,
          [randomUUID()],
        ),
      () =>
        database.query(`insert into call_events (txn, event) select $1, '{}' from generate_series(1, 2)`, [
          randomUUID(),
        ]),
    ],
  ],
  one_contradiction: [
    [
      'a second contradiction of one call',
      () =>
        database.query(
          `insert into call_events (txn, event) select $1, '{"what":"contradiction"}' from generate_series(1, 2)`,
          [randomUUID()],
        ),
      () =>
        database.query(
          `insert into call_events (txn, event) select $1, e from unnest(array['{"what":"contradiction"}', '{"what":"vote"}']::jsonb[]) e`,
          [randomUUID()],
        ),
    ],
  ],
  possible_call: [
    intent('a fingerprint of another length', { fingerprint: Buffer.alloc(31) }, { fingerprint: Buffer.alloc(32) }),
    intent('a step without a saga', { ordinal: 1 }, { ordinal: 1, saga: SAGA }),
    intent('an epoch without a run', { epoch: 1 }, { epoch: 1, run: RUN }),
    intent('a run without an epoch', { run: RUN }, { run: RUN, epoch: 2 }),
  ],
  possible_open_call: [
    openCall('more unresolved attempts than attempts', { unresolved: 2 }, { unresolved: 2, attempt: 2 }),
    openCall('a negative number of unresolved attempts', { unresolved: -1 }, { unresolved: 0 }),
    openCall('a negative number of attempts', { state: 'held', attempt: -1, unresolved: 0 }, { state: 'held' }),
    openCall('a held call with an attempt', { state: 'held', attempt: 1 }, { state: 'held', attempt: 0 }),
    openCall('a ready call with an attempt', { state: 'ready', attempt: 1 }, { state: 'ready', attempt: 0 }),
    openCall('a sent call without an attempt', { state: 'sending', attempt: 0 }, { state: 'sending', attempt: 1 }),
    openCall('a running call without an attempt', { state: 'running', attempt: 0 }, { state: 'running', attempt: 1 }),
    openCall('a doubt without an attempt', { state: 'in_doubt', attempt: 0 }, { state: 'in_doubt', attempt: 1 }),
    openCall('a fenced call that is not recalled', { fenced: true }, { fenced: true, recalled: true }),
  ],
  possible_settlement: [
    outcome('a success with a problem', { state: 'succeeded', problem: 'internal' }, { state: 'succeeded' }),
    ...['failed', 'rejected', 'expired', 'cancelled'].map((state) =>
      outcome(`${state} without a problem`, { state, problem: null }, { state, problem: 'internal' }),
    ),
    ...['rejected', 'expired', 'cancelled'].map((state) =>
      outcome(`${state} after an attempt`, { state, attempt: 1 }, { state, attempt: 0 }),
    ),
  ],
  running_undos_have_a_txn: ['running', 'done'].map((state) =>
    undo(`${state} without a compensation`, { state }, { state, undo_txn: randomUUID() }),
  ),
  calls_by_saga: [
    [
      'a second step with the same ordinal',
      async () => {
        const saga = randomUUID();
        for (const _ of [1, 2]) await insertIntent(database, { saga, ordinal: 1 });
      },
      async () => {
        const saga = randomUUID();
        for (const ordinal of [1, 2, null, null]) await insertIntent(database, { saga, ordinal });
      },
    ],
  ],
};

const ENUMS: Readonly<Record<string, readonly Example[]>> = {
  call_kind: [intent('an unknown kind', { kind: 'sometimes' }, { kind: 'probe' })],
  call_identity: [intent('an unknown identity', { identity: 'name' }, { identity: 'shared' })],
  open_state: [
    openCall('an unknown state', { state: 'lost' }, { state: 'in_doubt' }),
    openCall('a final state of an open call', { state: 'succeeded' }, { state: 'sending' }),
  ],
  final_state: [
    outcome('an unknown state', { state: 'lost', problem: 'internal' }, { state: 'failed' }),
    outcome('an open state of an outcome', { state: 'in_doubt', problem: 'internal' }, { state: 'succeeded' }),
  ],
  call_evidence: [outcome('unknown evidence', { evidence: 'rumour' }, { evidence: 'late_answer' })],
  undo_state: [undo('an unknown state', { state: 'maybe' }, { state: 'irreversible' })],
};

const erasing = (...columns: string[]) => columns.map((column) => `${column} = null`).join(', ');

/** For each trigger, its function, which the error names. */
const TRIGGERS: Readonly<Record<string, readonly [call: string, examples: readonly Example[]]>> = {
  calls_immutable: [
    'refuse_rewrite_of_call',
    [
      ...['key', 'args', 'request', 'undo'].map((column) =>
        update(`another ${column}`, 'calls', filledIntent, `${column} = 'x'`, `${column} = null`),
      ),
      update('other sealed bytes', 'calls', filledIntent, `sealed = '\\x00'`, 'sealed = null'),
      update('a payload where none was', 'calls', () => insertIntent(database), `args = '{}'`, 'args = null'),
      update(
        'no rule',
        'calls',
        filledIntent,
        'rule = null',
        `${erasing('key', 'args', 'request', 'sealed', 'undo')}, erased_at = now()`,
      ),
      ...[
        `agent = 'b'`,
        `tool = 'u'`,
        `kind = 'key'`,
        `identity = 'key'`,
        `fingerprint = sha256('x')`,
        `policy_version = 'w'`,
        `rule = 'other'`,
        `created_at = created_at + interval '1 s'`,
        'key_lifetime_ms = 1',
        'saga = gen_random_uuid()',
        'undo_of = gen_random_uuid()',
        'run = gen_random_uuid(), epoch = 1',
        'depends_on = array[gen_random_uuid()]',
        'txn = gen_random_uuid()',
      ].map((change) => update(change, 'calls', filledIntent, change, 'erased_at = now()')),
    ],
  ],
  settlements_immutable: [
    'refuse_rewrite_of_settlement',
    [
      update('another answer', 'settlements', filledOutcome, `answer = '{"a":2}'`, 'answer = null'),
      update('another detail', 'settlements', filledOutcome, `detail = 'e'`, 'detail = null'),
      update(
        'an answer where none was',
        'settlements',
        () => insertEndedCall(database),
        `answer = '{}'`,
        'answer = null',
      ),
      ...[
        `state = 'failed', problem = 'internal'`,
        `evidence = 'person'`,
        `outcome = 'other'`,
        `resolved_by = 'p'`,
        `retried_by = 'p'`,
        `leaf = '\\x00'`,
        'leaf = null',
        'attempt = 2',
        'owner_deaths = 1',
        'lock_token = 1',
        `settled_at = settled_at + interval '1 s'`,
        'first_sent_at = now()',
        'unknown_since = now()',
        'txn = gen_random_uuid()',
      ].map((change) => update(change, 'settlements', filledOutcome, change, erasing('answer', 'detail'))),
    ],
  ],
  call_events_immutable: [
    'refuse_rewrite_of_event',
    [
      update('another event', 'call_events', insertEvent, `event = '{"what":"approved"}'`, 'event = event'),
      update('an event without a member', 'call_events', insertEvent, `event = event - 'person'`, 'event = event'),
      update('an event of another call', 'call_events', insertEvent, 'txn = gen_random_uuid()', 'txn = txn'),
    ],
  ],
  open_calls_transitions: [
    'refuse_open_call_transition',
    [
      update('sending to held', 'open_calls', sentCall, `state = 'held', attempt = 0`, `state = 'in_doubt'`),
      update('sending to ready', 'open_calls', sentCall, `state = 'ready', attempt = 0`, `state = 'running'`),
      update('held to in doubt', 'open_calls', heldCall, `state = 'in_doubt', attempt = 1`, `state = 'ready'`),
      update(
        'held to running',
        'open_calls',
        heldCall,
        `state = 'running', attempt = 1`,
        `state = 'sending', attempt = 1`,
      ),
      update('a smaller fence', 'open_calls', sentCall, 'fence = 6', 'fence = 8'),
      update('another run', 'open_calls', sentCall, `run = '${RUN}'`, 'run = run'),
      update('another txn', 'open_calls', sentCall, 'txn = gen_random_uuid()', 'txn = txn'),
    ],
  ],
  undos_transitions: [
    'refuse_undo_transition',
    [
      update('due to skipped', 'undos', dueUndo, `state = 'skipped'`, `state = 'running'`),
      update('due to none', 'undos', dueUndo, `state = 'none'`, `state = 'failed'`),
      ...['due', 'failed'].map(
        (state): Example => [
          `${state} for a call that failed`,
          () => insertFailedUndo(state),
          () => insertUndo({ state }),
        ],
      ),
      [
        'a due undo of an open call',
        async () => insertRow(database, 'undos', { txn: await insertOpenCall(database), state: 'due' }),
        async () => insertRow(database, 'undos', { txn: await insertOpenCall(database), before: '{}' }),
      ],
    ],
  ],
};

const listExamples = (rules: Readonly<Record<string, readonly Example[]>>) =>
  Object.entries(rules).flatMap(([rule, examples]) =>
    examples.map(([name, refused, accepted]) => ({ rule, name, refused, accepted })),
  );

describe('an impossible row', () => {
  it.each(listExamples(CONSTRAINTS))('is refused by $rule: $name', async ({ rule, refused, accepted }) => {
    await expect(refused()).rejects.toMatchObject({ constraint: rule });
    await accepted();
  });

  it.each(listExamples(ENUMS))('is refused by $rule: $name', async ({ rule, refused, accepted }) => {
    await expect(refused()).rejects.toMatchObject({
      code: '22P02',
      message: expect.stringContaining(`invalid input value for enum ${rule}:`),
    });
    await accepted();
  });

  const triggers = Object.entries(TRIGGERS).flatMap(([trigger, [call, examples]]) =>
    examples.map(([name, refused, accepted]) => ({ trigger, call, name, refused, accepted })),
  );
  it.each(triggers)('is refused by $trigger: $name', async ({ call, refused, accepted }) => {
    await expect(refused()).rejects.toMatchObject({ code: '23514', where: expect.stringContaining(`${call}()`) });
    await accepted();
  });
});

describe('these tests', () => {
  const TABLES = `array['calls', 'open_calls', 'settlements', 'undos', 'call_events']::regclass[]`;
  const readNames = async (query: string) =>
    (await database.query<{ name: string }>(query)).map(({ name }) => name).sort();

  it('cover every constraint and unique index of the tables of calls', async () => {
    const names = await readNames(
      `select conname as name from pg_constraint where conrelid = any (${TABLES}) and contype <> 'n'
       union select indexrelid::regclass::text from pg_index where indrelid = any (${TABLES}) and indisunique`,
    );
    expect(names).toEqual(Object.keys(CONSTRAINTS).sort());
  });

  it('cover every enum', async () => {
    expect(await readNames(`select distinct enumtypid::regtype::text as name from pg_enum`)).toEqual(
      Object.keys(ENUMS).sort(),
    );
  });

  it('cover every trigger that refuses something', async () => {
    const names = await readNames(`select tgname as name from pg_trigger
      where tgrelid = any (${TABLES}) and not tgisinternal and tgfoid::regproc::text like 'refuse%'`);
    expect(names).toEqual(Object.keys(TRIGGERS).sort());
  });
});
