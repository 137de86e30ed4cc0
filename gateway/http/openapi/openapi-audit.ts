import type { JsonObject } from '../../domain/json.ts';
import { json, problem, query } from './openapi-parts.ts';

const HASH: JsonObject = { type: 'string', description: 'SHA-256, in hex.' };
const HASHES: JsonObject = { type: 'array', items: HASH };
const NUMBER: JsonObject = { type: 'integer', minimum: 0 };
const NOTE: JsonObject = { type: 'string', description: 'A signed note (C2SP tlog-checkpoint).' };
const ENTRY: JsonObject = { type: 'object', description: 'What was logged; its canonical text is what was hashed.' };

/** The tamper-evident log. */
export function auditPaths(): JsonObject {
  const text = (description: string) => ({ description, content: { 'text/plain': { schema: { type: 'string' } } } });
  return {
    '/admin/audit/checkpoint': {
      get: {
        summary: 'The newest checkpoint',
        responses: { 200: text('The signed note itself.'), default: problem },
      },
    },
    '/admin/audit/key': {
      get: { summary: 'The public key of the log', responses: { 200: text('Name, id and key.'), default: problem } },
    },
    '/admin/audit/entries': {
      get: {
        summary: 'Entries of the log, in their order',
        parameters: [
          query('from', NUMBER),
          query('to', NUMBER),
          query('format', { type: 'string', enum: ['json', 'jsonl'] }),
        ],
        responses: { 200: { description: 'A page.', content: json(PAGE) }, default: problem },
      },
    },
    '/admin/audit/proof': {
      get: {
        summary: 'That an entry is in the log (leaf), or that the log of one size begins that of another (from, to)',
        parameters: [query('leaf', HASH), query('from', NUMBER), query('to', NUMBER)],
        responses: {
          200: { description: 'The proof.', content: json({ anyOf: [INCLUSION, CONSISTENCY] }) },
          default: problem,
        },
      },
    },
    '/admin/erase': {
      post: {
        summary: 'Erase the payloads of an agent, a saga, a call, or of whatever holds a text in its arguments',
        requestBody: { required: true, content: json(ERASE) },
        responses: { 200: { description: 'What was erased, and what is open and was not.' }, default: problem },
      },
    },
    '/admin/audit/accept': {
      post: {
        summary: 'Take the log of the database for the true one, although a kept checkpoint says otherwise',
        requestBody: {
          required: true,
          content: json({ type: 'object', required: ['reason'], properties: { reason: { type: 'string' } } }),
        },
        responses: { 200: { description: 'It is so, now or before.' }, default: problem },
      },
    },
  };
}

const ERASE: JsonObject = {
  type: 'object',
  required: ['reason'],
  description: 'One of agent, saga, txn and subject; cursor goes on where an answer stopped.',
  properties: Object.fromEntries(
    ['agent', 'saga', 'txn', 'subject', 'reason', 'cursor'].map((name) => [name, { type: 'string' }]),
  ),
};
const PAGE: JsonObject = {
  type: 'object',
  properties: {
    items: {
      type: 'array',
      items: { type: 'object', properties: { index: NUMBER, leaf: HASH, checkpoint: NOTE, entry: ENTRY } },
    },
    cursor: { type: ['string', 'null'], description: 'The next `from`.' },
  },
};
const INCLUSION: JsonObject = {
  type: 'object',
  properties: { leaf: HASH, index: NUMBER, size: NUMBER, root: HASH, proof: HASHES, checkpoint: NOTE, entry: ENTRY },
};
const CONSISTENCY: JsonObject = {
  type: 'object',
  properties: { from: NUMBER, to: NUMBER, proof: HASHES, checkpoint: NOTE },
};
