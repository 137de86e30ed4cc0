// The tools of the test MCP server. Every effect is on disk before the server answers.
// The server shares no code with the gateway and uses no MCP library, so that no common bug can hide.
import { createHash } from 'node:crypto';
import fs from 'node:fs';

const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const input = { type: 'object', properties: { id: { type: 'string' }, n: { type: 'integer' } }, required: ['id'] };
const output = {
  type: 'object',
  properties: { id: { type: 'string' }, effect: { type: 'integer' } },
  required: ['id', 'effect'],
};
const text = (words) => ({ type: 'text', text: words });

/** The effects, one line each, in a file that outlives the process. Each line is synced before the answer is sent. */
export class Journal {
  constructor(file) {
    this.fd = fs.openSync(file, 'a+');
    this.entries = fs.readFileSync(file, 'utf8').split('\n').filter(Boolean).map(JSON.parse);
  }

  add(entry) {
    const recorded = { n: this.entries.length + 1, ...entry };
    fs.writeSync(this.fd, `${JSON.stringify(recorded)}\n`);
    fs.fsyncSync(this.fd);
    this.entries.push(recorded);
    return recorded;
  }

  clear() {
    fs.ftruncateSync(this.fd, 0);
    this.entries = [];
  }
}

/** The key of a call: from a header, or from `_meta` over stdio. */
const keyOf = (call) => call.headers['idempotency-key'] ?? call.params._meta?.['oncegate/idempotency-key'] ?? null;
const digest = (value) => createHash('sha256').update(JSON.stringify(value)).digest('hex');

function recordEffect(journal, call, more = {}) {
  const { name, arguments: args = {}, _meta } = call.params;
  const key = _meta?.['oncegate/idempotency-key'] ?? null;
  const entry = journal.add({ tool: name, id: args.id ?? null, key, argsSha256: digest(args), ...more });
  const structuredContent = { id: String(args.id), effect: entry.n };
  return { content: [text(`${name} of ${args.id} done`)], structuredContent };
}

/** Each tool has a description (`about`) and an action (`run`). `call.ask` asks the client and waits for the answer. */
export const TOOLS = {
  pay: {
    about: { description: 'Pays once a key.', inputSchema: input, outputSchema: output },
    run(call, journal) {
      const key = keyOf(call);
      const earlier = journal.entries.find((entry) => entry.tool === 'pay' && entry.key === key && key !== null);
      if (earlier === undefined) return recordEffect(journal, call);
      const isSame = earlier.argsSha256 === digest(call.params.arguments);
      if (!isSame) return { isError: true, content: [text('this key paid something else')] };
      return { content: [text('paid before')], structuredContent: { id: earlier.id, effect: earlier.n } };
    },
  },
  put: {
    about: { description: 'Puts it there.', inputSchema: input },
    run: (call, journal) => recordEffect(journal, call),
  },
  mail: {
    about: { description: 'Sends it.', inputSchema: input },
    run: (call, journal) => recordEffect(journal, call),
  },
  find: {
    about: { description: 'Looks for it.', inputSchema: input, annotations: { readOnlyHint: true } },
    run(call, journal) {
      const found = journal.entries.some(({ id }) => id === call.params.arguments.id);
      return { content: [text(String(found))], structuredContent: { found } };
    },
  },
  show: {
    about: { description: 'Shows one of each kind.', title: 'Show everything', inputSchema: { type: 'object' } },
    run: () => ({
      content: [
        { type: 'text', text: 'a picture, a sound and a file — ünïcødé', annotations: { audience: ['user'] } },
        { type: 'image', data: PIXEL, mimeType: 'image/png' },
        { type: 'audio', data: 'UklGRg==', mimeType: 'audio/wav' },
        { type: 'resource', resource: { uri: 'notes://1', mimeType: 'text/plain', text: 'a note' } },
        { type: 'resource_link', uri: 'notes://2', name: 'another note' },
      ],
      structuredContent: { deep: { list: [1, 'two', null, { three: 3.5 }] } },
      _meta: { 'example.org/own': { kept: true } },
    }),
  },
  tell: {
    about: { description: 'Tells what it was sent.', inputSchema: { type: 'object' } },
    run: (call) => ({
      content: [
        text(JSON.stringify({ headers: call.headers, env: process.env, argv: process.argv, params: call.params })),
      ],
    }),
  },
  greet: {
    about: { description: 'Asks for a name first.', inputSchema: input },
    async run(call, journal) {
      const schema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
      const params = { mode: 'form', message: 'What is your name?', requestedSchema: schema };
      const answer = await call.ask('name', 'elicitation/create', params);
      if (answer?.action !== 'accept') return { isError: true, content: [text(`not greeted: ${answer?.action}`)] };
      return recordEffect(journal, call, { said: answer.content.name });
    },
  },
  think: {
    about: { description: 'Asks the model of the client.', inputSchema: input },
    async run(call, journal) {
      const messages = [{ role: 'user', content: { type: 'text', text: 'Say a word.' } }];
      const answer = await call.ask('word', 'sampling/createMessage', { messages, maxTokens: 10 });
      if (answer?.content === undefined) return { isError: true, content: [text('no model to ask')] };
      return recordEffect(journal, call, { said: answer.content.text ?? answer.content[0]?.text });
    },
  },
  steps: {
    about: { description: 'Says how far it is.', inputSchema: input },
    run(call, journal) {
      const progressToken = call.params._meta?.progressToken;
      for (const progress of [1, 2, 3])
        call.say('notifications/progress', { progressToken, progress, total: 3, message: `step ${progress}` });
      call.say('notifications/message', { level: 'warning', logger: 'world', data: 'almost done' });
      return recordEffect(journal, call);
    },
  },
};

export const RESOURCES = [{ uri: 'notes://1', name: 'one', mimeType: 'text/plain' }];
export const TEMPLATES = [{ uriTemplate: 'notes://{id}', name: 'notes' }];
export const PROMPTS = [{ name: 'hello', description: 'Says hello.', arguments: [{ name: 'who', required: true }] }];

/** Answers methods other than tools/call. The server answers list methods, because lists change. */
export function answerOtherMethod(method, params, label) {
  if (method === 'resources/read' && params.uri.startsWith(`notes://`))
    return { contents: [{ uri: params.uri, mimeType: 'text/plain', text: `${label}: ${params.uri}` }] };
  if (method === 'prompts/get' && params.name === 'hello')
    return { messages: [{ role: 'user', content: { type: 'text', text: `Hello ${params.arguments?.who}` } }] };
  if (method === 'completion/complete') return { completion: { values: [`${params.argument.value}-completed`] } };
  if (method === 'resources/subscribe' || method === 'resources/unsubscribe') return {};
  if (method === 'logging/setLevel' || method === 'ping') return {};
  return undefined;
}
