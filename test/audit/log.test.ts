import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { hashLeaf } from '../../gateway/domain/audit/audit.ts';
import { verifyConsistency, verifyInclusion } from '../../gateway/domain/audit/merkle.ts';
import { NoteVerifier } from '../../gateway/domain/audit/signed-note.ts';
import { type CliResult, runCli } from '../cli/terminal.ts';
import { ADMIN_KEY, AGENT_KEY, VIEWER_KEY } from '../support/gateway.ts';
import { useReplicas } from '../support/use-gateway.ts';

const { one: gateway, two: secondReplica, database } = useReplicas();
let scratch: string;
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'oncegate-audit-'));
});
afterAll(() => rm(scratch, { recursive: true, force: true }));

const readAsViewer = (path: string) => gateway.request('GET', path, { key: VIEWER_KEY });
const cli = (...argv: string[]): Promise<CliResult> =>
  runCli(argv, { env: { ONCEGATE_URL: gateway.url, ONCEGATE_KEY: ADMIN_KEY }, cwd: scratch });
const fromHex = (hex: string) => Buffer.from(hex, 'hex');

async function createVerifier(): Promise<NoteVerifier> {
  return new NoteVerifier((await readAsViewer('/admin/audit/key')).body.trim());
}

describe('a receipt', () => {
  it('is proved to be in the log by hashes and a signature alone', async () => {
    const call = await gateway.call('world.keyed', { id: 'receipt' }, { key: 'receipt' });
    const { leaf } = call.body.receipt;
    const { status, body } = await readAsViewer(`/admin/audit/proof?leaf=${leaf}`);
    expect(status).toBe(200);
    const { size, root } = (await createVerifier()).verifyCheckpoint(body.checkpoint);
    expect(size).toBe(body.size);
    expect(root.toString('hex')).toBe(body.root);
    expect(verifyInclusion(fromHex(leaf), body.index, size, body.proof.map(fromHex), root)).toBe(true);
    expect(body.entry).toMatchObject({ what: 'call_succeeded', txn: call.body.txn, agent: 'tester' });
    const [listed] = (await readAsViewer(`/admin/audit/entries?from=${body.index}&to=${body.index + 1}`)).body.items;
    expect(listed).toMatchObject({ index: body.index, leaf, entry: body.entry });
    // A replay has the same receipt.
    expect((await gateway.call('world.keyed', { id: 'receipt' }, { key: 'receipt' })).body.receipt.leaf).toBe(leaf);
  });

  it('that does not exist answers 404, and a malformed query 400', async () => {
    expect((await readAsViewer(`/admin/audit/proof?leaf=${'0'.repeat(64)}`)).body.code).toBe('not_found');
    for (const query of ['', '?leaf=xyz', '?from=-1', '?from=1&leaf=00', `?leaf=${'0'.repeat(64)}&from=1`])
      expect([query, (await readAsViewer(`/admin/audit/proof${query}`)).body.code]).toEqual([query, 'malformed']);
    expect((await readAsViewer('/admin/audit/proof?from=9&to=8')).body.code).toBe('not_found');
    expect((await readAsViewer('/admin/audit/entries?from=x')).body.code).toBe('malformed');
    expect((await readAsViewer('/admin/audit/entries?format=xml')).body.code).toBe('malformed');
  });
});

describe('the audit log', () => {
  it('is readable by people and not by agents', async () => {
    for (const path of ['checkpoint', 'key', 'entries', `proof?leaf=${'0'.repeat(64)}`]) {
      expect((await gateway.request('GET', `/admin/audit/${path}`)).status).toBe(401);
      expect((await gateway.get(`/admin/audit/${path}`, AGENT_KEY)).status).toBe(403);
    }
    const headers = { 'content-type': 'application/json' };
    const body = '{"reason":"x"}';
    const accept = (key: string) => gateway.request('POST', '/admin/audit/accept', { key, headers, body });
    expect((await accept(VIEWER_KEY)).status).toBe(403);
    expect((await accept(ADMIN_KEY)).body).toMatchObject({ accepted: false });
  });

  it('has a checkpoint as a signed note, and each later checkpoint extends it', async () => {
    const verifier = await createVerifier();
    const first = await readAsViewer('/admin/audit/checkpoint');
    expect(first.headers.get('content-type')).toMatch(/^text\/plain/);
    const before = verifier.verifyCheckpoint(first.body);
    const call = await secondReplica.call('world.keyed', { id: 'later' }, { key: 'later' });
    await readAsViewer(`/admin/audit/proof?leaf=${call.body.receipt.leaf}`);
    const after = verifier.verifyCheckpoint((await readAsViewer('/admin/audit/checkpoint')).body);
    expect(after.size).toBeGreaterThan(before.size);
    const { body } = await readAsViewer(`/admin/audit/proof?from=${before.size}&to=${after.size}`);
    expect(verifyConsistency(before, after, body.proof.map(fromHex))).toBe(true);
  });

  it('records denials, votes, starts and actions of people with their reasons, but no dry run', async () => {
    const headers = { 'oncegate-dry-run': '?1' };
    await gateway.call('world.keyed', { id: 'dry-only' }, { key: 'dry-only', headers });
    expect((await gateway.call('nothing.here', { id: 'denied' })).status).toBe(403);
    const held = await gateway.call('world.held', { id: 'held' }, { key: 'held', headers: { prefer: 'wait=0' } });
    const [waiting] = (await gateway.admin('GET', '/admin/approvals?state=pending')).body.items;
    const decision = { reason: 'looks fine', digest: waiting.digest };
    expect((await gateway.admin('POST', `/admin/approvals/${held.body.txn}/approve`, decision)).status).toBe(200);
    const done = await gateway.waitForCall(held.body.txn, (call) => call.settledAt !== null);
    await gateway.admin('POST', '/admin/freeze', { tool: 'world.none', reason: 'odd mails' });
    await gateway.admin('POST', '/admin/unfreeze', { tool: 'world.none', reason: 'all good' });
    const last = await gateway.call('world.keyed', { id: 'last' }, { key: 'last' });
    await readAsViewer(`/admin/audit/proof?leaf=${last.body.receipt.leaf}`);
    const { items } = (await readAsViewer('/admin/audit/entries')).body;
    const findEntries = (what: string) =>
      items.map(({ entry }: never) => entry).filter((entry: { what: string }) => entry.what === what);
    expect(findEntries('booted').length).toBeGreaterThanOrEqual(2);
    expect(findEntries('denied')).toMatchObject([{ tool: 'nothing.here', agent: 'tester' }]);
    expect(findEntries('vote')).toMatchObject([{ txn: held.body.txn, person: 'root', reason: 'looks fine' }]);
    expect(findEntries('frozen')).toMatchObject([{ scope: 'tool:world.none', person: 'root', reason: 'odd mails' }]);
    expect(findEntries('unfrozen')).toMatchObject([{ reason: 'all good' }]);
    const entriesOfCall = items
      .map(({ entry }: never) => entry)
      .filter((entry: { txn?: string }) => entry.txn === done.txn);
    expect(entriesOfCall.map(({ what }: { what: string }) => what)).toEqual(
      expect.arrayContaining(['call_held', 'vote', 'call_failed']),
    );
    expect(JSON.stringify(items)).not.toContain('dry-only');
  });

  it('contains every entry of two replicas exactly once', async () => {
    const calls = await Promise.all(
      Array.from({ length: 400 }, (_, i) =>
        (i % 2 === 0 ? gateway : secondReplica).call('world.keyed', { id: `both-${i}` }, { key: `both-${i}` }),
      ),
    );
    const leaves = calls.map(({ body }) => body.receipt.leaf);
    // Every earlier entry is sealed together with the last one or before it.
    const last = await gateway.call('world.keyed', { id: 'both-last' }, { key: 'both-last' });
    expect((await readAsViewer(`/admin/audit/proof?leaf=${last.body.receipt.leaf}`)).status).toBe(200);
    const rows = await database.query<{ leaf: string; n: number }>(
      `select encode(leaf, 'hex') as leaf, count(*)::int as n from audit_log where encode(leaf, 'hex') = any($1) group by leaf`,
      [leaves],
    );
    expect(rows).toHaveLength(400);
    expect(new Set(rows.map(({ n }) => n))).toEqual(new Set([1]));
  });

  it('has an anchor outside the database, and a key file that only its owner can read', async () => {
    const directory = join(gateway.home, 'data', 'checkpoints');
    const names = (await readdir(directory)).filter((name) => name.startsWith('checkpoint-'));
    expect(names.length).toBeGreaterThanOrEqual(1);
    (await createVerifier()).verifyCheckpoint(await readFile(join(directory, names.sort().at(-1) ?? ''), 'utf8'));
    expect((await stat(join(gateway.home, 'data', 'audit.key'))).mode & 0o777).toBe(0o600);
  });
});

describe('audit export and verify', () => {
  it('an export is verified offline, and verification names the first changed entry', async () => {
    const exported = await cli('audit', 'export');
    expect([exported.code, exported.err]).toEqual([0, '']);
    const lines = exported.out.split('\n');
    expect(lines.pop()).toBe('');
    expect(Object.keys(JSON.parse(lines.at(-1) ?? ''))).toEqual(['checkpoint', 'publicKey']);
    await writeFile(join(scratch, 'log.jsonl'), exported.out);
    const good = await cli('audit', 'verify', 'log.jsonl', '--json');
    expect([good.code, JSON.parse(good.out)]).toMatchObject([
      0,
      { good: true, entries: lines.length - 1, fault: null },
    ]);
    expect((await cli('audit', 'verify', 'log.jsonl')).out).toBe(`good\t${lines.length - 1} entries\n`);

    const target = lines.findIndex((line) => line.includes('"what":"denied"'));
    await writeFile(join(scratch, 'changed.jsonl'), exported.out.replace('"what":"denied"', '"what":"allowd"'));
    const changed = await cli('audit', 'verify', 'changed.jsonl', '--json');
    expect([changed.code, JSON.parse(changed.out)]).toMatchObject([
      1,
      { good: false, fault: { entry: target, upTo: target } },
    ]);
    expect((await cli('audit', 'verify', 'changed.jsonl')).out).toContain(`the first bad entry is ${target}:`);

    const leaf = JSON.parse(lines[target] ?? '').leaf;
    const entry = /"entry":(.*)}$/.exec(lines[target] ?? '')?.[1]?.replace('denied', 'allowd') ?? '';
    const forged = lines.with(
      target,
      (lines[target] ?? '').replace(leaf, hashLeaf(entry).toString('hex')).replace('denied', 'allowd'),
    );
    await writeFile(join(scratch, 'forged.jsonl'), `${forged.join('\n')}\n`);
    const { fault } = JSON.parse((await cli('audit', 'verify', 'forged.jsonl', '--json')).out);
    expect(fault.entry).toBeLessThanOrEqual(target);
    expect(fault.upTo).toBeGreaterThanOrEqual(target);
  });

  it('an export is compared with a checkpoint and a key that the user kept', async () => {
    const checkpoint = (await readAsViewer('/admin/audit/checkpoint')).body;
    await writeFile(join(scratch, 'kept'), checkpoint);
    await writeFile(join(scratch, 'key'), (await readAsViewer('/admin/audit/key')).body);
    const last = await gateway.call('world.keyed', { id: 'kept' }, { key: 'kept' });
    await readAsViewer(`/admin/audit/proof?leaf=${last.body.receipt.leaf}`);
    const { out } = await cli('audit', 'export');
    await writeFile(join(scratch, 'whole.jsonl'), out);
    const argv = ['audit', 'verify', 'whole.jsonl', '--checkpoint', 'kept', '--key', 'key'];
    expect((await cli(...argv)).code).toBe(0);
    const { size } = (await createVerifier()).verifyCheckpoint(checkpoint);
    // The export ends at an older signed checkpoint. Only a user who kept a newer checkpoint can detect the cut.
    const lines = out.split('\n');
    const [signed] = await database.query<{ size: number; note: string }>(
      'select size::int as size, note from audit_checkpoints where size < $1 order by size desc limit 1',
      [size],
    );
    const { size: older, note } = signed ?? { size: 0, note: '' };
    const cut = [
      ...lines.slice(0, older),
      JSON.stringify({ checkpoint: note, publicKey: JSON.parse(lines.at(-2) ?? '').publicKey }),
      '',
    ];
    await writeFile(join(scratch, 'cut.jsonl'), cut.join('\n'));
    expect((await cli('audit', 'verify', 'cut.jsonl')).code).toBe(0);
    const detected = await cli('audit', 'verify', 'cut.jsonl', '--checkpoint', 'kept', '--json');
    expect([detected.code, JSON.parse(detected.out).fault.entry]).toEqual([1, older]);
    await writeFile(join(scratch, 'other'), 'oncegate/x+00000000+AAAA\n');
    expect((await cli('audit', 'verify', 'whole.jsonl', '--key', 'other')).code).toBe(1);
    expect((await cli('audit', 'verify', 'nowhere.jsonl')).err).toContain('cannot be read: ENOENT');
    expect((await cli('audit', 'verify')).code).toBe(2);
  });
});
