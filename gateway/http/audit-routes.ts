import type { FastifyInstance } from 'fastify';
import { formatEntryLine } from '../domain/audit/audit-export.ts';
import { GatewayError } from '../domain/errors.ts';
import { acceptLog } from '../flow/audit/accept-log.ts';
import {
  getLogPublicKey,
  type InclusionProof,
  proveConsistency,
  proveLeaf,
  readLogEntries,
  requireNewestCheckpoint,
} from '../flow/audit/read-log.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { reasonBody } from './schemas/fields.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';
import { type Query, readParam } from './transport/query.ts';

/** Entries per page, to keep a page at a few megabytes. */
const MAX_ENTRIES = 4_096;

/** The audit log: its entries, its checkpoint and the proofs that nothing in it changed. */
export function auditRoutes(app: FastifyInstance, services: Services): void {
  const policies = () => services.ctx.policies();

  app.get('/admin/audit/checkpoint', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    return reply.type('text/plain; charset=utf-8').send(await requireNewestCheckpoint(services));
  });

  app.get('/admin/audit/key', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    return reply.type('text/plain; charset=utf-8').send(`${getLogPublicKey(services)}\n`);
  });

  app.get('/admin/audit/entries', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    const query = request.query as Query;
    const from = readCount(query, 'from') ?? 0;
    const to = readCount(query, 'to') ?? Number.MAX_SAFE_INTEGER;
    const format = readParam(query, 'format') ?? 'json';
    if (format !== 'json' && format !== 'jsonl') throw new GatewayError('malformed', 'format must be json or jsonl.');
    const until = Math.min(to, from + MAX_ENTRIES);
    const lines = (await readLogEntries(services, from, until)).map(formatEntryLine);
    if (format === 'jsonl') return reply.type('application/jsonl').send(lines.map((line) => `${line}\n`).join(''));
    const cursor = lines.length === MAX_ENTRIES && until < to ? `"${until}"` : 'null';
    return reply.type('application/json').send(`{"items":[${lines.join(',')}],"cursor":${cursor}}`);
  });

  app.get('/admin/audit/proof', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    const query = request.query as Query;
    const leaf = readParam(query, 'leaf');
    const from = readCount(query, 'from');
    if ((leaf === undefined) === (from === undefined))
      throw new GatewayError('malformed', 'Send either ?leaf=<hash of an entry> or ?from=<size>&to=<size>.');
    if (leaf !== undefined) {
      if (!/^[0-9a-f]{64}$/i.test(leaf)) throw new GatewayError('malformed', 'leaf must be 64 hex digits.');
      return reply
        .type('application/json')
        .send(formatInclusionProof(await proveLeaf(services, Buffer.from(leaf, 'hex'))));
    }
    const { proof, ...view } = await proveConsistency(services, from ?? 0, readCount(query, 'to'));
    return { ...view, proof: proof.map(hex) };
  });

  app.post('/admin/audit/accept', async (request) => {
    const person = identifyPerson(request, policies(), 'admin');
    const body = readBody(request, reasonBody);
    return acceptLog(services, { person: person.name, reason: body.reason });
  });
}

/** Writes the entry as the exact text that was hashed. */
function formatInclusionProof({ leaf, index, entry, size, proof, root, checkpoint }: InclusionProof): string {
  const view = { leaf: hex(leaf), index, size, root: hex(root), proof: proof.map(hex), checkpoint };
  return `${JSON.stringify(view).slice(0, -1)},"entry":${entry}}`;
}

function hex(bytes: Buffer): string {
  return bytes.toString('hex');
}

function readCount(query: Query, name: string): number | undefined {
  const text = readParam(query, name);
  if (text === undefined) return undefined;
  if (!/^\d{1,15}$/.test(text)) throw new GatewayError('malformed', `${name} must be a number of entries, at least 0.`);
  return Number(text);
}
