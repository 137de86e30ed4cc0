import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { TestSaga } from '../sagas/saga.ts';
import { buildSagaPolicies } from '../sagas/saga-policies.ts';
import { ADMIN_KEY, VIEWER_KEY } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { runCli, startCannedServer } from './terminal.ts';

const REASON = ['--reason', 'it was a mistake'];
const UNKNOWN_ID = '7c0e6a52-8a0c-8f00-9a52-0123456789ab';

let env: NodeJS.ProcessEnv;
let terminal: { env: NodeJS.ProcessEnv; isTty: true };

const RETRY = '{ attempts: 2, base: 20ms, max: 50ms, within: 1h }';
const { upstream, gateway } = useGateway({ policies: (url) => buildSagaPolicies(url, { retry: RETRY }) });
beforeAll(() => {
  env = { ONCEGATE_URL: gateway.url, ONCEGATE_KEY: ADMIN_KEY };
  terminal = { env: { ...env, NO_COLOR: '1' }, isTty: true };
});
beforeEach(() => upstream.reset());

const listEffects = async () => (await upstream.effects()).map(({ route, id }) => `${route.split('/').at(-1)} ${id}`);
const parseRows = (text: string) =>
  text
    .trimEnd()
    .split('\n')
    .map((line) => line.split('\t'));

function expectFits80Columns(text: string): void {
  for (const line of text.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
}

/** Steps: charge a, charge b (depends on nothing), a read, a mail that depends on a, and a call that waits for approval. */
async function openMixedSaga() {
  const saga = await TestSaga.open(gateway, { name: 'trip to Rome' });
  const a = (await saga.callStep('world.charge', { id: 'a' })).body.txn as string;
  const b = (await saga.callStep('world.charge', { id: 'b' }, { on: [] })).body.txn as string;
  const look = (await saga.callStep('world.find', { id: 'a' }, { on: [] })).body.txn as string;
  const mail = (await saga.callStep('world.mail', { id: 'm' }, { on: [a] })).body.txn as string;
  const held = (await saga.callStep('world.approved', { id: 'h' }, { on: [], headers: { prefer: 'wait=0' } })).body
    .txn as string;
  return { saga, a, b, look, mail, held };
}

async function openParkedSaga() {
  const saga = await TestSaga.open(gateway);
  const charge = (await saga.callStep('world.charge', { id: 'a' })).body.txn as string;
  const mail = (await saga.callStep('world.mail', { id: 'm' })).body.txn as string;
  expect((await saga.rollback()).body.state).toBe('parked');
  return { saga, charge, mail };
}

describe('sagas', () => {
  it('lists the matching sagas, newest first', async () => {
    const committed = await TestSaga.open(gateway, { name: 'first' });
    await committed.postAction('commit');
    const open = await TestSaga.open(gateway, { name: 'a name that is far too long for a terminal' });
    await open.callStep('world.find', { id: 'x' });
    const { code, out } = await runCli(['sagas', '--limit', '2'], { env });
    expect(code).toBe(0);
    expect(parseRows(out).map((row) => row.slice(0, -1))).toEqual([
      [open.id, 'open', 'tester', 'a name that is far too long for a terminal', '1'],
      [committed.id, 'committed', 'tester', 'first', '0'],
    ]);
    const filtered = await runCli(['sagas', '--state', 'committed', '--all'], { env });
    expect(filtered.out).toContain(committed.id);
    expect(filtered.out).not.toContain(open.id);
    expect((await runCli(['sagas', '--agent', 'other'], { ...terminal })).out).toBe('No sagas match these options.\n');
    const table = await runCli(['sagas', '--limit', '1'], terminal);
    expectFits80Columns(table.out);
    expect(table.out).toContain(`${open.id}  open`);
    expect(table.err).toContain('--all');
    const { items, cursor } = JSON.parse((await runCli(['sagas', '--limit', '1', '--json'], { env })).out);
    expect([items[0].saga, typeof cursor]).toEqual([open.id, 'string']);
  });
});

describe('saga', () => {
  it('shows the steps, their undos, and the next commands', async () => {
    const { saga, charge, mail } = await openParkedSaga();
    const { code, out } = await runCli(['saga', saga.id.toUpperCase()], terminal);
    expect(code).toBe(0);
    expectFits80Columns(out);
    expect(out).toMatch(/^state +parked$/m);
    expect(out).toContain(`  1 world.charge\n    ${charge} succeeded\n`);
    expect(out).toContain('undo due: by world.refund {"effect":"eff_1","id":"a"}');
    expect(out).toContain(`it waits until ${mail}`);
    expect(out).toContain('undo irreversible');
    expect(out).toContain(`oncegate resume ${saga.id}`);
    const plain = parseRows((await runCli(['saga', saga.id], { env })).out).filter(([kind]) => kind === 'step');
    expect(plain.map((row) => row.slice(0, 6))).toEqual([
      ['step', '1', charge, 'world.charge', 'succeeded', 'due'],
      ['step', '2', mail, 'world.mail', 'succeeded', 'irreversible'],
    ]);
    expect(JSON.parse((await runCli(['saga', saga.id, '--json'], { env })).out)).toEqual(
      (await gateway.admin('GET', `/admin/sagas/${saga.id}`)).body,
    );
  });

  it('shows savepoints and dependencies between the steps', async () => {
    const saga = await TestSaga.open(gateway, { ttl: '1h', onExpire: 'park' });
    const first = (await saga.callStep('world.charge', { id: 'a' })).body.txn;
    await saga.postAction('savepoints', { name: 'paid' });
    await saga.callStep('world.charge', { id: 'b' }, { on: [] });
    await saga.callStep('world.charge', { id: 'c' }, { on: [first] });
    const { out } = await runCli(['saga', saga.id], terminal);
    expect(out).toMatch(/^onExpire +park$/m);
    const order = [
      '  1 world',
      '── savepoint paid',
      '  2 world',
      'depends on no other step',
      '  3 world',
      'depends on step 1\n',
    ];
    expect(order.map((text) => out.indexOf(text))).toEqual(
      order.map((text) => out.indexOf(text)).toSorted((a, b) => a - b),
    );
    for (const text of order) expect(out).toContain(text);
    expect((await runCli(['saga', saga.id], { env })).out).toContain('savepoint\t1\tpaid\n');
  });

  it.each(['saga', 'rollback', 'resume', 'close'])('%s refuses an unknown saga', async (verb) => {
    const reason = verb === 'saga' ? [] : REASON;
    const { env: serverEnv, requests } = await startCannedServer(() => ({ body: {} }));
    for (const id of ['../policies', '..', 'x'])
      expect((await runCli([verb, id, ...reason], { env: serverEnv })).code).toBe(1);
    expect(requests).toEqual([]);
    const { code, err } = await runCli([verb, UNKNOWN_ID, ...reason], { env });
    expect(code).toBe(1);
    expect(err).toContain(`There is no saga ${UNKNOWN_ID}`);
    expect(err).toContain('"oncegate sagas" lists');
  });
});

describe('rollback --dry-run', () => {
  it('shows waves, steps without undo, obstacles and blocked steps, and changes nothing', async () => {
    const { saga, a, b, look, mail, held } = await openMixedSaga();
    const { code, out } = await runCli(['rollback', saga.id, '--dry-run'], terminal);
    expect(code).toBe(1);
    expectFits80Columns(out);
    const [first = '', withdrawn = '', nothing = '', cannot = '', end = ''] = out
      .split(/^(?:1\. first|withdrawn|nothing to undo|cannot be undone)$|^(?=It would end)/m)
      .slice(1);
    expect(first).toContain(`└─ world.charge ${b}\n      undone by world.refund {"effect":"eff_2","id":"b"}\n`);
    expect(withdrawn).toContain(held);
    expect(nothing).toContain(`${look}\n      the call only read`);
    expect(cannot).toContain(`${mail}\n      the contract says that the call cannot be undone`);
    expect(cannot).toContain(`└─ world.charge ${a}\n         undone by world.refund {"effect":"eff_1","id":"a"}`);
    expect(end).toContain('It would end parked: 1 step undone, 1 cannot be undone, 1 would wait for it.');
    expect((await saga.read()).state).toBe('open');
    expect(await listEffects()).toEqual(['charge a', 'charge b', 'mail m']);

    const plain = parseRows((await runCli(['rollback', saga.id, '--dry-run'], { env })).out);
    expect(plain).toContainEqual(['wouldEnd', 'parked']);
    expect(plain).toContainEqual([
      'undo',
      '1',
      b,
      'world.charge',
      'world.refund',
      '{"effect":"eff_2","id":"b"}',
      '',
      '',
    ]);
    expect(plain.find(([, , txn]) => txn === a)?.at(-1)).toBe(mail);
    // A rollback with the digest follows the plan; any other digest is refused.
    const [, digest = ''] = plain.find(([name]) => name === 'digest') ?? [];
    expect(out).toContain(`--digest ${digest}`);
    const other = ['--digest', digest.replace(/./g, '0')];
    expect((await runCli(['rollback', saga.id, ...other, ...REASON], { env })).err).toContain(
      'Nothing was rolled back',
    );
    const done = await runCli(['rollback', saga.id, '--digest', digest, ...REASON], { env });
    expect(done.code).toBe(1);
    expect((await listEffects()).slice(3)).toEqual(['refund b']);
  });

  it('shows dependent steps in order, and the steps that a savepoint keeps', async () => {
    const saga = await TestSaga.open(gateway);
    const a = (await saga.callStep('world.charge', { id: 'a' })).body.txn;
    await saga.postAction('savepoints', { name: 'paid' });
    const b = (await saga.callStep('world.charge', { id: 'b' })).body.txn;
    const c = (await saga.callStep('world.charge', { id: 'c' }, { on: [b] })).body.txn;
    const d = (await saga.callStep('world.charge', { id: 'd' }, { on: [b] })).body.txn;
    const { code, out } = await runCli(['rollback', saga.id, '--dry-run', '--to', 'paid'], terminal);
    expect(code).toBe(0);
    const [first = '', then = '', kept = ''] = out.split(/^(?:1\. first, 2 at once|2\. then|kept)$/m).slice(1);
    for (const txn of [c, d]) expect(first).toContain(txn);
    expect(then).toContain(b);
    expect(kept).toContain(a);
    expect(kept).toContain('It would end open: 3 steps undone.');
    const json = await runCli(['rollback', saga.id, '--dry-run', '--json'], { env });
    expect([json.code, JSON.parse(json.out).wouldEnd]).toEqual([0, 'rolled_back']);
    const viewer = { ...env, ONCEGATE_KEY: VIEWER_KEY };
    expect((await runCli(['rollback', saga.id, '--dry-run'], { env: viewer })).code).toBe(0);
    expect((await runCli(['rollback', saga.id, ...REASON], { env: viewer })).code).toBe(1);
    expect((await saga.read()).state).toBe('open');
    expect((await runCli(['rollback', saga.id, '--dry-run', '--to', 'nowhere'], { env })).code).toBe(1);
  });

  it('fails for a saga that has ended', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.charge', { id: 'a' });
    await saga.postAction('commit');
    expect((await runCli(['rollback', saga.id, '--dry-run'], terminal)).code).toBe(1);
    const { code, err } = await runCli(['rollback', saga.id, ...REASON], { env });
    expect(code).toBe(1);
    expect(err).toContain('committed');
  });
});

describe('rollback', () => {
  it('undoes the last step first, and prints every change', async () => {
    const saga = await TestSaga.open(gateway);
    const a = (await saga.callStep('world.charge', { id: 'a' })).body.txn;
    const b = (await saga.callStep('world.charge', { id: 'b' })).body.txn;
    const { code, out } = await runCli(['rollback', saga.id, ...REASON], { env });
    expect(code).toBe(0);
    expect(await listEffects()).toEqual(['charge a', 'charge b', 'refund b', 'refund a']);
    const lines = parseRows(out);
    expect(lines).toContainEqual(['done', b, 'world.charge', 'world.refund', '']);
    expect(lines).toContainEqual(['done', a, 'world.charge', 'world.refund', '']);
    expect(lines.at(-1)?.slice(0, 2)).toEqual([saga.id, 'rolled_back']);
    // A repeated rollback succeeds and prints the state.
    expect((await runCli(['rollback', saga.id, ...REASON, '--json'], { env })).code).toBe(0);
    expect(await listEffects()).toHaveLength(4);
  });

  it('to a savepoint leaves the saga open', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.charge', { id: 'a' });
    await saga.postAction('savepoints', { name: 'paid' });
    await saga.callStep('world.charge', { id: 'b' });
    const { code, out } = await runCli(['rollback', saga.id, '--to', 'paid', ...REASON], terminal);
    expect(code).toBe(0);
    expectFits80Columns(out);
    expect(out).toContain('1 step undone, 0 needed no undo\n');
    expect(out).toContain(`${saga.id} is open\n`);
    expect(await listEffects()).toEqual(['charge a', 'charge b', 'refund b']);
  });

  it('exits with code 1 when it parks, can be resumed with a waiver, and closed', async () => {
    const saga = await TestSaga.open(gateway);
    const charge = (await saga.callStep('world.charge', { id: 'a' })).body.txn;
    const mail = (await saga.callStep('world.mail', { id: 'm' })).body.txn;
    const parked = await runCli(['rollback', saga.id, ...REASON], terminal);
    expect(parked.code).toBe(1);
    expectFits80Columns(parked.out);
    expect(parked.out).toContain(`irreversible  world.mail ${mail}\n`);
    expect(parked.out).toContain(`${saga.id} is parked\n`);
    expect(parked.out).toContain(`oncegate close ${saga.id}`);
    expect(await listEffects()).toEqual(['charge a', 'mail m']);

    const resumed = await runCli(['resume', saga.id, '--waive', mail.toUpperCase(), ...REASON], { env });
    // The saga stays parked, because a sent mail cannot be undone.
    expect(resumed.code).toBe(1);
    expect(parseRows(resumed.out)).toContainEqual(['done', charge, 'world.charge', 'world.refund', '']);
    // A step that did not change is not printed.
    expect(resumed.out.split('\n').slice(0, -2).join('\n')).not.toContain(mail);
    expect(await listEffects()).toEqual(['charge a', 'mail m', 'refund a']);
    expect((await runCli(['saga', saga.id], terminal)).out).toContain('waived');
    expect(await runCli(['close', saga.id, '--reason', 'Ann knows'], { env })).toEqual({
      code: 0,
      out: `${saga.id}\tclosed\tAnn knows\n`,
      err: '',
    });
    const again = await runCli(['resume', saga.id, ...REASON], { env });
    expect(again.code).toBe(1);
    expect(again.err).toContain(`"oncegate saga ${saga.id}" shows its state.`);
  });

  it('waives several steps, and refuses an unknown step', async () => {
    const two = await TestSaga.open(gateway);
    await two.callStep('world.charge', { id: 'two' });
    const mails = [await two.callStep('world.mail', { id: 'm1' }), await two.callStep('world.mail', { id: 'm2' })];
    await two.rollback();
    const waive = mails.flatMap(({ body }) => ['--waive', body.txn]);
    await runCli(['resume', two.id, ...waive, ...REASON], { env });
    expect(await listEffects()).toEqual(['charge two', 'mail m1', 'mail m2', 'refund two']);

    const { saga, mail } = await openParkedSaga();
    const { code, err } = await runCli(['resume', saga.id, '--waive', mail, '--waive', UNKNOWN_ID, ...REASON], { env });
    expect(code).toBe(1);
    expect(err).toContain(`This saga has no step ${UNKNOWN_ID}`);
    expect((await runCli(['saga', saga.id], terminal)).out).not.toContain('waived');
  });

  it('retries failed undos', async () => {
    const saga = await TestSaga.open(gateway);
    const charge = (await saga.callStep('world.charge', { id: 'a' })).body.txn;
    await upstream.plan({ match: { path: '/keyed/refund' }, do: [{ reply: 422, body: {} }], times: 2 });
    const failed = await runCli(['rollback', saga.id, ...REASON], { env });
    expect(failed.code).toBe(1);
    expect(
      parseRows(failed.out).some(([state, txn, , , why]) => state === 'failed' && txn === charge && why !== ''),
    ).toBe(true);
    expect((await runCli(['resume', saga.id, ...REASON], { env })).code).toBe(0);
    expect(await listEffects()).toEqual(['charge a', 'refund a']);
  });

  it('continues in the gateway after Ctrl-C', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.charge', { id: 'a' });
    await upstream.plan({ match: { path: '/keyed/refund' }, do: [{ event: 'asked' }, { wait: 'go' }] });
    const child = spawn(process.execPath, ['bin/oncegate.js', 'rollback', saga.id, ...REASON], {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let [out, err] = ['', ''];
    child.stdout.on('data', (chunk) => {
      out += String(chunk);
    });
    child.stderr.on('data', (chunk) => {
      err += String(chunk);
    });
    await upstream.awaitEvent('asked');
    await expect.poll(() => out).toContain('running\t');
    child.kill('SIGINT');
    expect(await once(child, 'close')).toEqual([1, null]);
    expect(err).toContain('The rollback continues in the gateway.');
    expect(err).toContain(`"oncegate saga ${saga.id}"`);
    await upstream.release('go');
    expect((await saga.waitUntilSettled()).state).toBe('rolled_back');
  });

  it('is watched while the gateway is unreachable', async () => {
    const saga = { saga: UNKNOWN_ID, state: 'rolling_back', reason: 'x', steps: [], savepoints: [] };
    let reads = 0;
    const { env: serverEnv } = await startCannedServer(({ method }) => {
      if (method === 'POST') return { status: 202, body: saga };
      reads++;
      if (reads === 1) return { body: { ...saga, state: 'open' } };
      if (reads < 4) return { status: 502, type: 'text/html', body: 'no upstream' };
      return { body: { ...saga, state: reads < 5 ? 'rolling_back' : 'rolled_back' } };
    });
    const { code, out, err } = await runCli(['rollback', UNKNOWN_ID, ...REASON, '--json'], { env: serverEnv });
    expect([code, reads, err]).toEqual([0, 5, '']);
    expect(JSON.parse(out)).toMatchObject({ state: 'rolled_back' });
    reads = 0;
    const plain = await runCli(['rollback', UNKNOWN_ID, ...REASON], { env: serverEnv });
    expect(plain.err.match(/continues when it is back/g)).toHaveLength(1);
  });
});

it('control characters and tabs in names are escaped', async () => {
  const name = 'a\u001b[2Jb\tc\nd\u202e';
  const saga = await TestSaga.open(gateway, { name });
  await saga.callStep('world.charge', { id: name });
  await saga.postAction('savepoints', { name });
  const verbs = [
    ['sagas', '--limit', '1'],
    ['saga', saga.id],
    ['rollback', saga.id, '--dry-run', '--to', name],
  ];
  for (const argv of [...verbs, ['rollback', saga.id, '--reason', name]]) {
    for (const isTty of [false, true]) {
      const { out } = await runCli(argv, { ...terminal, isTty });
      for (const character of '\u001b\u202e') expect(out).not.toContain(character);
      if (argv[0] === 'sagas' && !isTty) expect(parseRows(out)[0]).toHaveLength(6);
      if (argv[0] === 'saga' && !isTty) expect(out).toMatch(/^savepoint\t1\ta\\u\{1b\}\[2Jb c d/m);
    }
  }
});

it('a saga that was parked on expiry is rolled back, not resumed', async () => {
  const saga = await TestSaga.open(gateway, { ttl: '500ms', onExpire: 'park' });
  await saga.callStep('world.charge', { id: 'a' });
  expect((await saga.waitUntilSettled()).state).toBe('parked');
  expect((await runCli(['resume', saga.id, ...REASON], { env })).code).toBe(1);
  const { out } = await runCli(['saga', saga.id], terminal);
  expectFits80Columns(out);
  expect(out).toContain(`oncegate rollback ${saga.id}`);
  expect(out).not.toContain('oncegate resume');
  expect((await runCli(['rollback', saga.id, ...REASON], { env })).code).toBe(0);
  expect(await listEffects()).toEqual(['charge a', 'refund a']);
});

describe('undo', () => {
  it('undoes one call; call and calls show it', async () => {
    const saga = await TestSaga.open(gateway);
    const { txn } = (await saga.callStep('world.charge', { id: 'a' })).body;
    const early = await runCli(['undo', txn, ...REASON], { env });
    expect(early.code).toBe(1);
    expect(early.err).toContain('Roll the saga back');
    await saga.postAction('commit');
    const before = await runCli(['call', txn], { env });
    expect(before.out).toContain('undo\tcompensable by world.refund {"effect":"eff_1","id":"a"}\n');
    const { code, out } = await runCli(['undo', txn, ...REASON], { env });
    const [[undone, state, tool, by = '']] = parseRows(out) as [string[]];
    expect([code, undone, state, tool]).toEqual([0, txn, 'done', 'world.refund']);
    expect(await listEffects()).toEqual(['charge a', 'refund a']);
    expect((await runCli(['call', txn], { env })).out).toContain(`; done as ${by}\n`);
    const refund = await runCli(['call', by], { env });
    expect(refund.out).toContain(`undoes\t${txn}\n`);
    const calls = parseRows((await runCli(['calls', '--saga', saga.id], { env })).out);
    expect(calls.map(([id]) => id)).toEqual([by, txn]);
    expect((await runCli(['calls', '--saga', 'x'], { env })).code).toBe(1);
    expect((await runCli(['undo', txn, ...REASON, '--json'], { env })).code).toBe(0);
    expect(await listEffects()).toHaveLength(2);
  });

  it('exits with code 1 and the reason when it fails, and takes other arguments', async () => {
    const { txn } = (await gateway.call('world.charge', { id: 'a' })).body;
    await upstream.plan({ match: { path: '/keyed/refund' }, do: [{ reply: 422, body: {} }], times: 'always' });
    const failed = await runCli(['undo', txn, ...REASON], terminal);
    expect(failed.code).toBe(1);
    expectFits80Columns(failed.out);
    expect(failed.out).toContain(`${txn}: undo failed\n`);
    expect(failed.out).toContain('tried 2 times');
    const shown = await runCli(['call', txn], terminal);
    expectFits80Columns(shown.out);
    expect(shown.out).toMatch(/^undo +compensable by world.refund/m);
    expect(shown.out).toContain(`oncegate undo ${txn}`);
    await upstream.reset();
    const bad = await runCli(['undo', txn, ...REASON, '--args', '{"id":1}'], { env });
    expect(bad.code).toBe(1);
    expect(bad.err).toContain('  ');
    const args = '{"id":"by-hand","effect":"eff_9"}';
    expect((await runCli(['undo', txn, ...REASON, '--args', args], { env })).code).toBe(0);
    expect(await listEffects()).toEqual(['refund by-hand']);
  });

  it('refuses an irreversible call, and never puts anything but a txn into a path', async () => {
    const { txn } = (await gateway.call('world.mail', { id: 'm' })).body;
    const { code, err } = await runCli(['undo', txn, ...REASON], { env });
    expect(code).toBe(1);
    expect(err).toContain('irreversible');
    expect((await runCli(['undo', '../../freeze', ...REASON], { env })).code).toBe(1);
    expect(await listEffects()).toEqual(['mail m']);
  });
});

it('approvals and approve show the undo', async () => {
  const headers = { prefer: 'wait=0', 'oncegate-undo': '{"tool":"world.refund","args":{"id":"h","effect":"e"}}' };
  const { txn } = (await gateway.call('world.approved', { id: 'h' }, { headers })).body;
  const listed = parseRows((await runCli(['approvals'], { env })).out).find(([id]) => id === txn);
  expect(listed?.at(-1)).toBe('compensable by world.refund');
  const wide = await runCli(['approvals'], { ...terminal, columns: 140 });
  expect(wide.out).toContain('compensable by world.refund');
  const shown = await runCli(['approve', txn, '--yes', ...REASON], { env });
  expect(shown.out).toContain('undo\tcompensable by world.refund {"effect":"e","id":"h"}\n');
});
