import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
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
import { reason } from './authority-routes.ts';
import { type Query, single } from './call-routes.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';

const acceptSchema = z.strictObject({ reason });
/** A page of the log: a few megabytes at most. */
const MOST_ENTRIES = 4_096;

/** The tamper-evident log: what it says, and how anybody can find out that it says so still. */
export function auditRoutes(app: FastifyInstance, flow: Services): void {
  const policies = () => flow.station.policies();

  app.get('/admin/audit/checkpoint', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    return reply.type('text/plain; charset=utf-8').send(await requireNewestCheckpoint(flow));
  });

  app.get('/admin/audit/key', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    return reply.type('text/plain; charset=utf-8').send(`${getLogPublicKey(flow)}\n`);
  });

  app.get('/admin/audit/entries', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    const query = request.query as Query;
    const from = numberOf(query, 'from') ?? 0;
    const to = numberOf(query, 'to') ?? Number.MAX_SAFE_INTEGER;
    const format = single(query, 'format') ?? 'json';
    if (format !== 'json' && format !== 'jsonl') throw new GatewayError('malformed', 'format must be json or jsonl.');
    const until = Math.min(to, from + MOST_ENTRIES);
    const lines = (await readLogEntries(flow, from, until)).map(formatEntryLine);
    if (format === 'jsonl') return reply.type('application/jsonl').send(lines.map((line) => `${line}\n`).join(''));
    const cursor = lines.length === MOST_ENTRIES && until < to ? `"${until}"` : 'null';
    return reply.type('application/json').send(`{"items":[${lines.join(',')}],"cursor":${cursor}}`);
  });

  app.get('/admin/audit/proof', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    const query = request.query as Query;
    const leaf = single(query, 'leaf');
    const from = numberOf(query, 'from');
    if ((leaf === undefined) === (from === undefined))
      throw new GatewayError('malformed', 'Ask for ?leaf=<hash of an entry>, or for ?from=<size>&to=<size>.');
    if (leaf !== undefined) {
      if (!/^[0-9a-f]{64}$/i.test(leaf)) throw new GatewayError('malformed', 'leaf must be 64 hex digits.');
      return reply.type('application/json').send(inclusionText(await proveLeaf(flow, Buffer.from(leaf, 'hex'))));
    }
    const { proof, ...view } = await proveConsistency(flow, from ?? 0, numberOf(query, 'to'));
    return { ...view, proof: proof.map(hex) };
  });

  app.post('/admin/audit/accept', async (request) => {
    const person = identifyPerson(request, policies(), 'admin');
    const body = readBody(request, acceptSchema);
    return acceptLog(flow, { person: person.name, reason: body.reason });
  });
}

/** The entry goes out as the very text that was hashed. */
function inclusionText({ leaf, index, entry, size, proof, root, checkpoint }: InclusionProof): string {
  const view = { leaf: hex(leaf), index, size, root: hex(root), proof: proof.map(hex), checkpoint };
  return `${JSON.stringify(view).slice(0, -1)},"entry":${entry}}`;
}

function hex(bytes: Buffer): string {
  return bytes.toString('hex');
}

function numberOf(query: Query, name: string): number | undefined {
  const text = single(query, name);
  if (text === undefined) return undefined;
  if (!/^\d{1,15}$/.test(text)) throw new GatewayError('malformed', `${name} must be a number of entries, from 0.`);
  return Number(text);
}
