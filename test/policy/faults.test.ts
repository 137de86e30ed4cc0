// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { describe, expect, test } from 'vitest';
import { HEX_A, listPolicyFaults, listPolicyWarnings, UPSTREAM_YAML } from './example.ts';

/** A tool `t` of the http upstream `u`, on line 4, and an agent that may call it. */
const tool = (body: string): string => `${UPSTREAM_YAML}tools:
  t: { upstream: u, ${body} }
agents:
  bot: { rules: [{ allow: "*" }] }
`;
const rule = (body: string, more = ''): string => `${UPSTREAM_YAML}tools:
  t: { upstream: u, input: { type: object, properties: { a: {}, b: {} }, additionalProperties: false } }
  r: { upstream: u, effect: read }
agents:
  bot:
    rules:
      - { ${body} }
${more}`;
const upstream = (body: string): string => `upstreams:
  u: { ${body} }
`;

const at = 'policies/p.yaml';

describe('faults of the YAML', () => {
  test.each<[string, string[]]>([
    [
      'a: [',
      [
        `${at}:1:5: The file is not valid YAML: Flow sequence in block collection must be sufficiently indented and end with a ].`,
      ],
    ],
    ['tools: {}\ntools: {}\n', [`${at}:2:1: The key tools appears twice. Remove one of them.`]],
    ['%YAML 1.1\n---\ntools: {}\n', [`${at}:1:1: YAML directives such as %YAML are not allowed. Remove the line.`]],
    [
      '--- {}\n--- {}\n',
      [`${at}:2:1: A file must hold only one YAML document. Put each document into a file of its own.`],
    ],
    [
      'tools: &a {}\nagents: *a\n',
      [
        `${at}:1:11: YAML anchors are not allowed. Write the value out where it is used.`,
        `${at}:2:9: YAML aliases are not allowed. Write the value out.`,
      ],
    ],
    ['tools: { <<: {} }\n', [`${at}:1:10: YAML merge keys (<<) are not allowed. Write the keys out.`]],
    ['tools: !!map {}\n', []],
    ['tools: !secret x\n', [`${at}:1:8: The file is not valid YAML: Unresolved tag: !secret.`]],
    ['1: x\n', [`${at}:1:1: A key must be text (got 1). Quote it.`]],
    ['__proto__: {}\n', [`${at}:1:1: A key must not be __proto__. Choose another name.`]],
    [
      'tools: 9007199254740993\n',
      [`${at}:1:8: The number 9007199254740993 cannot be represented exactly. Quote it, or write a smaller number.`],
    ],
    [
      'tools: .inf\n',
      [`${at}:1:8: The number .inf cannot be represented exactly. Quote it, or write a smaller number.`],
    ],
    [
      '- a\n',
      [`${at}:1:1: A policy file must be a map with the keys upstreams, tools, agents and people (got a list).`],
    ],
    ['', []],
    ['tools:\nagents:\n', []],
    ['tools: 5\n', [`${at}:1:8: tools must be a map (got 5).`]],
    [
      'tool: {}\n',
      [`${at}:1:1: Unknown key "tool". Did you mean "tools"? Known keys: upstreams, tools, agents and people.`],
    ],
  ])('%j', (yaml, faults) => {
    expect(listPolicyFaults(yaml)).toEqual(faults);
  });
});

describe('faults of one entry', () => {
  test.each<[string, string[]]>([
    [upstream('adapter: ftp'), [`${at}:2:17: adapter must be one of http, mcp (got ftp).`]],
    [
      upstream('adapter: htp, url: "http://x"'),
      [`${at}:2:17: adapter must be one of http, mcp (got htp). Did you mean "http"?`],
    ],
    [upstream('url: "http://x"'), [`${at}:2:3: adapter is required (one of http, mcp).`]],
    [upstream('adapter: http'), [`${at}:2:3: An http upstream must have a url.`]],
    [upstream('adapter: http, url: nowhere'), [`${at}:2:28: url must be a URL such as https://host/path.`]],
    [upstream('adapter: http, url: "ftp://x"'), [`${at}:2:28: url must begin with https:// or http://.`]],
    [
      upstream('adapter: http, url: "http://a:b@x"'),
      [`${at}:2:28: url must not contain a user name or password. Put credentials in headers.`],
    ],
    [
      upstream('adapter: http, url: "http://x?a=1"'),
      [`${at}:2:28: url must not contain ? or #. Remove everything after its path.`],
    ],
    [
      upstream('adapter: http, url: "http://x", import: "*"'),
      [
        `${at}:2:48: import must be the path of an OpenAPI document (.yaml, .yml or .json) below the policies, relative to this file (got *).`,
      ],
    ],
    [
      upstream('adapter: mcp, command: [x], import: "a b"'),
      [`${at}:2:44: import must be a tool name or glob of letters, digits, _, -, . and * (got "a b").`],
    ],
    [upstream('adapter: mcp'), [`${at}:2:3: An mcp upstream must have either url or command (got neither).`]],
    [
      upstream('adapter: http, url: "http://x", timeout: 10'),
      [`${at}:2:49: timeout must be a duration such as 500ms, 10s, 5m, 24h or 30d (got 10).`],
    ],
    [
      upstream('adapter: http, url: "http://x", timeout: 10 s'),
      [`${at}:2:49: timeout must be a duration such as 500ms, 10s, 5m, 24h or 30d (got "10 s").`],
    ],
    [upstream('adapter: http, url: "http://x", timeout: 2d'), [`${at}:2:49: timeout must be at most 24h (got 2d).`]],
    [
      upstream('adapter: http, url: "http://x", concurrency: 0'),
      [`${at}:2:53: concurrency must be at least 1 (got 0).`],
    ],
    [
      upstream('adapter: http, url: "http://x", breaker: { threshold: 50 }'),
      [`${at}:2:62: threshold must be a percentage from 1% to 100% (got 50).`],
    ],
    [
      upstream('adapter: http, url: "http://x", breaker: { treshold: 50% }'),
      [
        `${at}:2:51: Unknown key "treshold". Did you mean "threshold"? Known keys: threshold, minimum, window and cooldown.`,
      ],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { host: x }'),
      [`${at}:2:57: The gateway itself writes the header host. Remove it.`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { oncegate-lock-token: "1" }'),
      [`${at}:2:72: The gateway itself writes the header oncegate-lock-token. Remove it.`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { "a b": x }'),
      [`${at}:2:51: The key "a b" must be a header name without spaces and separators.`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "x\\ny" }'),
      [`${at}:2:54: The value of the header a must not contain line breaks or other control characters.`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "${env.NOPE}" }'),
      [
        `${at}:2:57: The environment variable NOPE is not set. Set it where the gateway starts and restart the gateway, or remove the reference.`,
      ],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "${file(\'/nope\')}" }'),
      [`${at}:2:57: /nope cannot be read (ENOENT). Check the path and its permissions.`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "${file(\'/dev/zero\')}" }'),
      [`${at}:2:57: /dev/zero is not a regular file. Name a file with the secret.`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "${args.x}" }'),
      [`${at}:2:57: This value cannot use expressions. Write only \${env.NAME} and \${file("/path")}.`],
    ],
    [
      upstream('adapter: http, url: "http://${file(\'/etc/hostname\')}"'),
      [
        `${at}:2:38: This value cannot use expressions. Write only \${env.NAME}.`,
        `${at}:2:28: url must be a URL such as https://host/path.`,
      ].sort(),
    ],
    [
      'upstreams:\n  "a b": { adapter: http, url: "http://x" }\n',
      [`${at}:2:3: The upstream name "a b" must have only letters, digits, _ and -.`],
    ],
    [
      'upstreams:\n  oncegate: { adapter: http, url: "http://x" }\n',
      [`${at}:2:3: The upstream name oncegate is reserved for the gateway itself. Choose another name.`],
    ],
    [
      'upstreams:\n  u:\n',
      [expect.stringMatching(/:2:5: u must be a map \(got nothing\)\. Known keys: adapter, url, /)],
    ],
    [
      tool('efect: read'),
      [
        `${at}:4:21: Unknown key "efect". Did you mean "effect"? Known keys: upstream, description, title, output, input, effect, request, once, key, undo, observe, locks, timeout, retry, noEffect, failed, accepted, proxy, redact, result, record, untrusted and repeats.`,
      ],
    ],
    [tool('once: { by: magic }'), [`${at}:4:33: by must be one of key, idempotent, probe, none (got magic).`]],
    [tool('once: { by: nature }'), [`${at}:4:33: The value nature was renamed. Write by: idempotent.`]],
    [
      tool('once: { by: key, headers: x }'),
      [`${at}:4:38: Unknown key "headers". Did you mean "header"? Known keys: by, header, field and lifetime.`],
    ],
    [tool('once: { by: key }'), [`${at}:4:21: once by key must have either header or field (got neither).`]],
    [
      tool('once: { by: key, header: A, field: b }'),
      [`${at}:4:21: once by key must have either header or field (got both).`],
    ],
    [
      tool('effect: read, once: { by: idempotent }'),
      [`${at}:4:35: once is only for writes, because a read has no effect. Remove it, or write effect: write.`],
    ],
    [
      tool('record: false'),
      [
        `${at}:4:21: record: false is only for reads, because an unrecorded write could happen twice. Remove it, or write effect: read.`,
      ],
    ],
    [
      tool('effect: read, record: false, locks: [all]'),
      [`${at}:4:50: locks needs a record in the ledger. Remove locks or record: false.`],
    ],
    [tool('locks: x'), [`${at}:4:28: locks must be a list (got x).`]],
    // A long text is no list; its length is not reported too.
    [
      `agents:\n  a: { keys: "sha256:${'0'.repeat(64)}", rules: [] }`,
      [expect.stringMatching(/ keys must be a list \(got /)],
    ],
    [tool('noEffect: [200]'), [`${at}:4:32: noEffect[0] must be at least 300 (got 200).`]],
    [tool('accepted: [303]'), [`${at}:4:32: accepted[0] must be at most 299 (got 303).`]],
    [tool('accepted: [199]'), [`${at}:4:32: accepted[0] must be at least 200 (got 199).`]],
    [tool('accepted: 202'), [`${at}:4:31: accepted must be a list (got 202).`]],
    [tool('failed: status'), [`${at}:4:29: The expression must yield true or false (got int).`]],
    [
      tool('failed: has(result.errors) && args.a'),
      [`${at}:4:51: Unknown variable "args". Known variables: status and result.`],
    ],
    [tool('failed: status == "200"'), [expect.stringContaining(`${at}:4:29: This is not a valid CEL expression: `)]],
    [tool('proxy: false'), [`${at}:4:28: proxy must be true (got false).`]],
    [
      tool('once: { by: probe, probe: { tool: r, applied: result.ok, result: { id: "${status}" } } }'),
      [
        `${at}:4:55: There is no tool "r". Declare it in tools.`,
        `${at}:4:95: Unknown variable "status". Known variables: result, args and agent.`,
      ],
    ],
    [tool('retry: { base: 10s, max: 1s }'), [`${at}:4:46: max must be at least base, which is 10s (got 1s).`]],
    [tool('redact: [card]'), [`${at}:4:30: redact[0] must be a path such as args.card or result.token (got card).`]],
    [
      tool('request: { method: post }'),
      [`${at}:4:40: method must be one of GET, HEAD, POST, PUT, PATCH, DELETE (got post). Did you mean "POST"?`],
    ],
    [tool('request: { path: charges }'), [`${at}:4:38: path must begin with / (got charges).`]],
    [
      tool('request: { path: "/a?b=1" }'),
      [`${at}:4:38: path must not contain ? or # (got "/a?b=1"). Write query parameters in query.`],
    ],
    [
      tool('request: { path: "/a/../b" }'),
      [`${at}:4:38: path must not contain . or .. segments, not even encoded (got /a/../b).`],
    ],
    [
      tool('request: { path: "/a/%2e%2E%2fb" }'),
      [`${at}:4:38: path must not contain . or .. segments, not even encoded (got /a/%2e%2E%2fb).`],
    ],
    [
      tool('request: { headers: { Oncegate-Lock-Token: "7" } }'),
      [`${at}:4:43: The gateway itself writes the header Oncegate-Lock-Token. Remove it.`],
    ],
    [
      tool('once: { by: key, header: Content-Length }'),
      [`${at}:4:46: The gateway itself writes the header Content-Length. Choose another header for the key.`],
    ],
    [
      tool('once: { by: key, header: oncegate-lock-token }'),
      [`${at}:4:46: The gateway itself writes the header oncegate-lock-token. Choose another header for the key.`],
    ],
    [
      tool('request: { method: GET, body: {} }'),
      [`${at}:4:45: A GET request must not have a body. Remove body, or choose another method.`],
    ],
    [rule('allow: t, deny: r'), [`${at}:9:9: A rule must have either allow or deny (got both).`]],
    [rule('when: "true"'), [`${at}:9:9: A rule must have either allow or deny (got neither).`]],
    [rule('allow: t, rate: 20'), [`${at}:9:27: rate must be a number per s, m, h or d, such as 20/m (got 20).`]],
    [
      rule('allow: t, rate: 20/min'),
      [`${at}:9:27: rate must be a number per s, m, h or d, such as 20/m (got 20/min).`],
    ],
    [rule('allow: t, approve: always'), [`${at}:9:30: approve must be never or a map (got always).`]],
    [
      rule('allow: t, approve: { qorum: 1 }'),
      [`${at}:9:32: Unknown key "qorum". Did you mean "quorum"? Known keys: when, by, quorum and within.`],
    ],
    [
      rule('deny: t, rate: 20/m, approve: never'),
      [
        `${at}:9:20: rate is only for allow rules. Remove it from this deny.`,
        `${at}:9:32: approve is only for allow rules. Remove it from this deny.`,
      ],
    ],
  ])('%s', (yaml, faults) => {
    expect(listPolicyFaults(yaml)).toEqual(faults);
  });
});

const PEOPLE = `people:
  alice: { roles: [approver], groups: [finance] }
  bob: { roles: [viewer], groups: [finance] }
`;

/** A tool `t` that builds arguments for `r`, the tool of line 6 with this schema. */
const building = (body: string, schema: string, input = '{}'): string => `${UPSTREAM_YAML}tools:
  t: { upstream: u, ${body}, input: ${input} }
  f: { upstream: u, effect: read, input: ${schema} }
  r: { upstream: u, input: ${schema} }
agents:
  bot: { rules: [{ allow: "*" }] }
`;
const undo = (args: string): string => `undo: { kind: compensable, tool: r, args: ${args} }`;
const CLOSED =
  '{ type: object, required: [charge], additionalProperties: false, properties: { charge: { type: string }, amount: { type: integer } } }';

describe('faults of arguments that a tool builds for another', () => {
  test.each<[string, string[]]>([
    [building(undo('{ charge: "${result.id}", amount: "${result.amount}" }'), CLOSED), []],
    [building(undo('"${args.undo}"'), CLOSED), []],
    [
      building(undo('{ amount: 1 }'), CLOSED),
      [`${at}:4:57: r requires the argument charge, which is missing. Add it.`],
    ],
    [building('undo: { kind: compensable, tool: r }', CLOSED), [expect.stringMatching(/:4:21: r requires .* charge/)]],
    [
      building(undo('{ chrage: "${result.id}" }'), CLOSED),
      [
        `${at}:4:57: r requires the argument charge, which is missing. Is it misspelled as chrage? Add it.`,
        `${at}:4:65: r has no argument chrage. Did you mean "charge"? Known arguments: charge and amount.`,
      ],
    ],
    [
      building(undo('{ charge: 7, amount: "1" }'), CLOSED),
      [
        `${at}:4:73: charge of r must be of type string (got 7).`,
        `${at}:4:84: amount of r must be of type integer (got "1").`,
      ],
    ],
    [
      building(
        undo('{ charge: "${args.id}", amount: "${args.price}" }'),
        CLOSED,
        '{ properties: { id: { type: integer }, price: { type: number } } }',
      ),
      [`${at}:4:73: charge of r must be of type string (got integer).`],
    ],
    [
      building(undo('"${args.id}"'), CLOSED, '{ properties: { id: { type: string } } }'),
      [`${at}:4:63: The arguments of r must be an object.`],
    ],
    // Other members may be allowed, and a choice of schemas is not followed.
    [building(undo('{ x: 1 }'), '{ type: object, properties: { charge: {} } }'), []],
    [building(undo('{ x: "${result.x}" }'), '{ anyOf: [{ required: [charge] }, { required: [y] }] }'), []],
    // Without expressions, the whole schema is known to apply.
    [
      building(undo('{ x: 1 }'), '{ anyOf: [{ required: [charge] }, { required: [y] }] }'),
      [expect.stringContaining(`${at}:4:57: These arguments do not fit r: args must have "charge"`)],
    ],
    [
      building(
        undo('{ a: { b: "${result.x}" } }'),
        '{ properties: { a: { $ref: "#/$defs/A" } }, $defs: { A: { required: [c] } } }',
      ),
      [`${at}:4:65: r requires the argument a.c, which is missing. Add it.`],
    ],
    [
      building('observe: { tool: f, args: { id: 1 }, satisfied: observed.ok }', CLOSED),
      [expect.stringMatching(/:4:41: f requires .* charge/), expect.stringMatching(/:4:49: f has no argument id\./)],
    ],
    [
      building('once: { by: probe, probe: { tool: f, applied: result.ok } }', CLOSED),
      [expect.stringMatching(/:4:40: f requires .* charge/)],
    ],
  ])('%s', (yaml, faults) => {
    expect(listPolicyFaults(yaml)).toEqual(faults);
  });
});

describe('an unquoted template in a flow collection', () => {
  const rest = Array.from({ length: 50 }, (_, i) => `  x${i}: { upstream: u, effect: read }\n`).join('');
  const withUndo = (args: string): string => `${UPSTREAM_YAML}tools:
  t: { upstream: u, undo: { kind: compensable, tool: r, args: ${args} } }
  r: { upstream: u }
${rest}agents:
  bot: { rules: [{ allow: "*" }] }
`;

  test.each<[string, string[]]>([
    ['{ id: ${args.id} }', ['4:69: A value with ${ must be quoted inside { } and [ ]. Write "${args.id}".']],
    ['{id: ${args.id}}', ['4:68: A value with ${ must be quoted inside { } and [ ]. Write "${args.id}".']],
    [
      '{ id: ${args["id"]}, b: 1 }',
      [`4:69: A value with \${ must be quoted inside { } and [ ]. Write '\${args["id"]}'.`],
    ],
    [
      '{ a: [x/${args.b}-${args.c}], d: ${ {"e": 1}.e } }',
      [
        '4:69: A value with ${ must be quoted inside { } and [ ]. Write "x/${args.b}-${args.c}".',
        '4:96: A value with ${ must be quoted inside { } and [ ]. Write \'${ {"e": 1}.e }\'.',
      ],
    ],
    ['{ id: $${literal} }', ['4:69: A value with ${ must be quoted inside { } and [ ]. Write "$${literal}".']],
  ])('%s is one fault that says how to quote it', (args, faults) => {
    expect(listPolicyFaults(withUndo(args))).toEqual(faults.map((fault) => `${at}:${fault}`));
  });

  test('does not hide the other faults of the file, nor add any in other files', () => {
    const faults = listPolicyFaults({
      'a.yaml': withUndo('{ id: ${args.id} }').replace('agents:', '  bad: { upstream: uu }\nagents:'),
      'b.yaml': 'agents:\n  other: { rules: [{ allow: t }] }\n',
    });
    expect(faults).toEqual([
      'policies/a.yaml:4:69: A value with ${ must be quoted inside { } and [ ]. Write "${args.id}".',
      'policies/a.yaml:56:20: There is no upstream "uu". Did you mean "u"?',
    ]);
  });

  test('needs no quotes in a block', () => {
    const block = withUndo('{}').replace('args: {} } }', 'args: {} }, locks: [a] }');
    expect(
      listPolicyFaults(block.replace('  r: { upstream: u }', '  r:\n    upstream: u\n    key: ${args.id}')),
    ).toEqual([]);
  });
});

describe('faults between entries', () => {
  test.each<[string, string[]]>([
    [
      'tools:\n  t: { upstream: pay }\nagents:\n  bot: { rules: [{ allow: t }] }\n',
      [`${at}:2:18: There is no upstream "pay". Declare it in upstreams.`],
    ],
    [`${UPSTREAM_YAML}tools:\n  t: { upstream: uu }\n`, [`${at}:4:18: There is no upstream "uu". Did you mean "u"?`]],
    [
      tool('undo: { kind: compensable, tool: refund }'),
      [`${at}:4:54: There is no tool "refund". Declare it in tools.`],
    ],
    [tool('undo: { kind: compensable }'), [`${at}:4:21: undo of kind compensable must name the tool that undoes it.`]],
    [
      tool('undo: { kind: irreversible, tool: t }'),
      [
        `${at}:4:49: undo of kind irreversible must not name a tool. Remove tool, or write kind: compensable or kind: reversible.`,
      ],
    ],
    [
      tool('once: { by: probe, probe: { tool: t, applied: "true" } }'),
      [`${at}:4:55: t must be a read. Write effect: read in its contract, or name another tool.`],
    ],
    [tool('observe: { tool: nope, satisfied: "true" }'), [`${at}:4:38: There is no tool "nope". Declare it in tools.`]],
    [
      tool('undo: { kind: compensable, tool: t, args: { a: "${before.x}" } }'),
      [`${at}:4:71: Unknown variable "before". Known variables: args, result and agent.`],
    ],
    [
      tool('once: { by: probe, probe: { tool: t, applied: result.ok && before.x } }'),
      [
        `${at}:4:55: t must be a read. Write effect: read in its contract, or name another tool.`,
        `${at}:4:80: Unknown variable "before". Known variables: result and args.`,
      ],
    ],
    [
      tool('input: { type: object, properties: { card: {} } }, locks: ["card/${args.crd}"]'),
      [`${at}:4:88: The input schema has no argument crd. Did you mean "card"? Its arguments: card.`],
    ],
    [
      tool('input: { type: object, properties: {}, additionalProperties: false }, key: "${args.id}"'),
      [`${at}:4:99: The input schema has no argument id. Its arguments: none.`],
    ],
    [
      tool('key: order'),
      [`${at}:4:26: The key order is the same for every call. Write an expression such as "\${args.order_id}".`],
    ],
    [tool('key: "${args.x +}"'), [`${at}:4:37: This is not a valid CEL expression: it ends too early.`]],
    [
      tool('key: { of: order, scope: shared }'),
      [`${at}:4:32: The key order is the same for every call. Write an expression such as "\${args.order_id}".`],
    ],
    [
      tool('key: { of: "${args.id}/${agent}", scope: shared }'),
      [`${at}:4:46: Unknown variable "agent". Known variables: args.`],
    ],
    [
      tool('key: { of: "${args.id}", scope: everybody }'),
      [`${at}:4:53: scope must be one of agent, shared (got everybody).`],
    ],
    [tool('key: { scope: shared }'), [`${at}:4:21: of is required.`]],
    [tool('key: { of: "${args.id}", shared: true }'), [`${at}:4:46: Unknown key "shared". Known keys: of and scope.`]],
    [tool('key: 7'), [`${at}:4:26: key must be a string or a map (got 7).`]],
    [
      tool('effect: read, key: { of: "${args.id}", scope: shared }'),
      [`${at}:4:67: scope: shared is only for writes, because a read has no effect to share. Remove it.`],
    ],
    [
      tool('observe: { tool: r, satisfied: "true", settles: soon }'),
      [
        `${at}:4:38: There is no tool "r". Declare it in tools.`,
        `${at}:4:69: settles must be a duration such as 0s, 500ms, 10s, 5m, 24h or 30d (got soon).`,
      ],
    ],
    [
      tool(
        'once: { by: probe, probe: { tool: r, applied: "true" } }, observe: { tool: r, satisfied: "true", settles: 1s }',
      ).replace('agents:', '  r: { upstream: u, effect: read, request: { path: /r } }\nagents:'),
      [`${at}:4:118: The probe of this tool ends its doubts, so settles belongs to once. Move it there.`],
    ],
    [
      tool('input: { type: string }'),
      [`${at}:4:36: type must be object, because the arguments of a tool are an object (got string).`],
    ],
    [
      tool('input: { type: object, properties: { a: { type: strin } } }'),
      [
        `${at}:4:21: This is not a valid JSON Schema: schema is invalid: data/properties/a/type must be equal to one of the allowed values, data/properties/a/type must be array, data/properties/a/type must match a schema in anyOf.`,
      ],
    ],
    [
      tool('input: { properties: { a: { pattern: "(a+)+" } } }'),
      [
        `${at}:4:58: The pattern could stall the gateway, because it has a repetition inside a repetition. Write it without.`,
      ],
    ],
    [
      tool('input: { properties: { a: { $ref: "http://x/y" } } }'),
      [`${at}:4:55: $ref must point inside this schema, such as #/$defs/name (got "http://x/y").`],
    ],
    [
      tool('input: { properties: { a: { uniqueItems: true } } }'),
      [
        `${at}:4:62: uniqueItems must come with items of a scalar type, because comparing objects takes quadratic time. Write items: { type: string }.`,
      ],
    ],
    [
      `${UPSTREAM_YAML}tools:
  a.one: { upstream: u, request: { method: GET, path: "/x/\${args.a}" } }
  a.two: { upstream: u, request: { method: GET, path: "/x/\${args.b}" } }
  a.three: { upstream: u, request: { method: PUT, path: "/x/\${args.b}" }, proxy: true }
`,
      [],
    ],
    [
      `${UPSTREAM_YAML}tools:
  a.one: { upstream: u, request: { path: "/x/\${args.a}" }, proxy: true }
  a.two: { upstream: u, request: { path: "/x/\${args.b}" }, proxy: true }
  a.three: { upstream: u, request: { path: "/x/\${args.b}" } }
`,
      [`${at}:5:60: proxy: true must be in only one tool with POST /x/{} of u, and a.one has it. Remove one of them.`],
    ],
    [
      'upstreams:\n  m: { adapter: mcp, url: "http://m.example" }\ntools:\n  m.t: { upstream: m, proxy: true }\n',
      [`${at}:4:23: proxy is only for tools of http upstreams, and m is an mcp upstream. Remove it.`],
    ],
    [
      `${UPSTREAM_YAML}tools:\n  a.b__c: { upstream: u, request: { path: /1 } }\n  a__b.c: { upstream: u, request: { path: /2 } }\n`,
      [`${at}:5:3: Models would see both a__b.c and a.b__c as a__b__c. Rename one of them.`],
    ],
    [
      `${UPSTREAM_YAML}tools:\n  ${'a'.repeat(60)}.bcd: { upstream: u }\n`,
      [`${at}:4:3: The name that models see must have at most 64 characters (got 65: ${'a'.repeat(60)}__bcd).`],
    ],
    [
      `${UPSTREAM_YAML}tools:\n  "a..b": { upstream: u }\n`,
      [`${at}:4:3: The tool name "a..b" must have only letters, digits, _ and -, in parts joined by single dots.`],
    ],
    [
      `${UPSTREAM_YAML}tools:\n  oncegate.x: { upstream: u }\n`,
      [`${at}:4:3: Tool names that begin with oncegate. are reserved for the gateway itself. Choose another name.`],
    ],
    [
      'upstreams:\n  crm: { adapter: mcp, command: [x] }\ntools:\n  other.x: { upstream: crm }\n',
      [`${at}:4:3: A tool of the mcp upstream crm must be named crm.<name> (got other.x).`],
    ],
    [
      'upstreams:\n  c: { adapter: mcp, command: [x] }\ntools:\n  c.x: { upstream: c, once: { by: key, header: K } }\n',
      [`${at}:4:48: An upstream with a command receives no headers, so the key would not arrive. Use field.`],
    ],
    [
      'upstreams:\n  c: { adapter: mcp, command: [x], import: "*" }\ntools:\n  c.x: { upstream: c, undo: { kind: compensable, tool: c.y } }\n',
      [],
    ],
    [rule('allow: tt'), [`${at}:9:11: This rule never matches, because there is no tool "tt". Did you mean "t"?`]],
    [
      rule('allow: oncegate.begin_sagas'),
      [
        `${at}:9:11: This rule never matches, because there is no tool "oncegate.begin_sagas". Did you mean "oncegate.begin_saga"?`,
      ],
    ],
    [
      rule('allow: t, effect: read'),
      [`${at}:9:11: This rule never matches, because it is for reads and t is a write.`],
    ],
    [
      rule('allow: t, when: args.c > 5'),
      [`${at}:9:27: The input schema of t has no argument c. Its arguments: a and b.`],
    ],
    [
      rule('allow: t, when: args.a > 5 && "x"'),
      [`${at}:9:27: This is not a valid CEL expression: Logical operator requires bool operands, got 'string'.`],
    ],
    [
      rule('allow: t, when: result.ok'),
      [
        `${at}:9:27: Unknown variable "result". Known variables: args, agent, tool, saga, run, now, history and tainted.`,
      ],
    ],
    [
      rule('allow: t, budget: { sum: "\'x\'", max: 1, per: 1h }'),
      [`${at}:9:37: The expression must yield a number (got string).`],
    ],
    [
      rule('allow: t, approve: { by: [finanze] }', PEOPLE),
      [`${at}:9:37: No person is in the group "finanze". Did you mean "finance"?`],
    ],
    [
      rule('allow: t, approve: { by: [finance], quorum: 2 }', PEOPLE),
      [`${at}:9:21: quorum 2 cannot be reached, because only alice can approve this.`],
    ],
    [
      `agents:\n  a: { keys: ["sha256:xyz"] }\n`,
      [
        `${at}:2:15: A key must be "sha256:" and the 64 hex digits of the SHA-256 of the bearer key. Run npx oncegate key new to make one.`,
      ],
    ],
    [
      `agents:\n  a: { keys: ["\${env.NOPE}"] }\n`,
      [
        `${at}:2:18: The environment variable NOPE is not set. Set it where the gateway starts and restart the gateway, or remove the reference.`,
      ],
    ],
    [
      `agents:\n  a: { keys: ["sha256:${HEX_A}"] }\npeople:\n  b: { keys: ["sha256:${HEX_A.toUpperCase()}"] }\n`,
      [`${at}:4:8: The person b has the same key as the agent a. Give each a key of its own.`],
    ],
    [
      'people:\n  a: { roles: [boss] }\n',
      [`${at}:2:16: roles[0] must be one of viewer, approver, operator, admin (got boss).`],
    ],
  ])('%s', (yaml, faults) => {
    expect(listPolicyFaults(yaml)).toEqual(faults);
  });

  test('a name defined in two files is a fault that names both positions', () => {
    const one = 'upstreams:\n  u: { adapter: http, url: "http://x" }\n';
    expect(listPolicyFaults({ 'a.yaml': one, 'sub/b.yaml': `# again\n${one}` })).toEqual([
      'policies/sub/b.yaml:3:3: The upstream "u" is already defined at policies/a.yaml:2:3. Rename or remove one of them.',
    ]);
  });

  test('all faults are reported at once, in the order of the files', () => {
    expect(
      listPolicyFaults({
        'b.yaml': 'tool: 1\nagents: 2\n',
        'a.yaml': 'tools: [\n',
        'c_test.yaml': 'tests: [{ name: x }]\n',
      }),
    ).toEqual([
      'policies/a.yaml:2:1: The file is not valid YAML: Flow sequence in block collection must be sufficiently indented and end with a ].',
      'policies/b.yaml:1:1: Unknown key "tool". Did you mean "tools"? Known keys: upstreams, tools, agents and people.',
      'policies/b.yaml:2:9: agents must be a map (got 2).',
      'policies/c_test.yaml:1:9: agent is required.',
      'policies/c_test.yaml:1:9: expect is required (one of allow, deny, hold).',
      'policies/c_test.yaml:1:9: tool is required.',
    ]);
  });

  test('a fault of one entry hides no other fault', () => {
    const faults = listPolicyFaults(
      'upstreams:\n  u: { adapter: http, url: "ftp://x", timeout: soon }\n' +
        'tools:\n  u.x: { upstream: u, once: { by: magic }, request: { method: POST, path: /x, body: "${args +}" } }\n' +
        'agents:\n  a:\n    keys: [plain]\n    rules:\n      - { allow: u.x, rate: often }\n      - { allow: u.x, deny: u.x }\n      - { allow: u.x, when: "args.n <=" }\n',
    );
    expect(faults.map((fault) => fault.split(': ')[0])).toEqual(
      ['2:28', '2:48', '4:35', '4:94', '7:12', '9:29', '10:9', '11:39'].map((place) => `policies/p.yaml:${place}`),
    );
  });

  test('an unknown key hides no other fault', () => {
    const faults = listPolicyFaults('tools:\n  a.b: { upstream: nowhere, zzz: 1, locks: ["${args.x"] }\n').join('\n');
    expect(faults).toContain('Unknown key "zzz"');
    expect(faults).toContain('"nowhere"');
    expect(faults.split('\n')).toHaveLength(3);
  });

  test('no fault shows a value of the environment', () => {
    const env = { SECRET: 'hunter2-hunter2' };
    const yaml = `${upstream('adapter: http, url: "${env.SECRET}", headers: { a: "${env.SECRET}\\n" }')}agents:\n  a: { keys: ["\${env.SECRET}"] }\n`;
    const faults = listPolicyFaults(yaml, env);
    expect(faults).toHaveLength(3);
    expect(faults.join()).not.toContain('hunter2');
  });
});

describe('warnings', () => {
  test.each<[string, string[]]>([
    [
      rule('allow: "x.*"'),
      [
        `${at}:4:3: No agent may call t. Add an allow rule, or remove the tool.`,
        `${at}:5:3: No agent may call r. Add an allow rule, or remove the tool.`,
        `${at}:9:11: The pattern x.* matches no tool.`,
      ],
    ],
    [rule('allow: "*", effect: read'), [`${at}:4:3: No agent may call t. Add an allow rule, or remove the tool.`]],
    [
      rule('allow: "*" }\n      - { allow: t'),
      [
        `${at}:10:11: This rule never decides, because bot rule 1 (policies/p.yaml:9) allows everything that it allows. Remove it, or move it up.`,
      ],
    ],
    [
      rule('allow: "*", approve: { quorum: 1 }'),
      [`${at}:9:23: Nobody can approve this, because no people are declared. Add an approver in people.`],
    ],
    ['agents:\n  a: {}\n', [`${at}:2:3: Agent a has no rules and may call nothing. Add an allow rule.`]],
    [
      tool('input: { properties: { a: {} } }, key: "${args.b}", redact: [args.c]'),
      [
        `${at}:4:63: The input schema has no argument b. Its arguments: a.`,
        `${at}:4:82: The input schema has no argument c. Its arguments: a.`,
      ],
    ],
    [
      tool('observe: { tool: r, satisfied: "true", settles: 1s }, locks: [{ key: a, mode: shared }]').replace(
        'agents:',
        '  r: { upstream: u, effect: read, request: { path: /r } }\nagents:',
      ),
      [
        `${at}:4:60: settles needs an exclusive lock, because otherwise another caller may have caused what the read shows. Declare one in locks.`,
      ],
    ],
  ])('%s', (yaml, warnings) => {
    expect(listPolicyFaults(yaml)).toEqual([]);
    expect(listPolicyWarnings(yaml)).toEqual(warnings);
  });
});
