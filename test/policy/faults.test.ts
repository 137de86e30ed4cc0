// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { describe, expect, test } from 'vitest';
import { HEX_A, listPolicyFaults, listPolicyWarnings, UPSTREAM_YAML } from './example.ts';

/** A tool `t` of the http upstream `u`, on line 4, and somebody who may call it. */
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

describe('YAML', () => {
  test.each<[string, string[]]>([
    ['a: [', [`${at}:1:5: not YAML: Flow sequence in block collection must be sufficiently indented and end with a ]`]],
    ['tools: {}\ntools: {}\n', [`${at}:2:1: this key is there twice`]],
    ['%YAML 1.1\n---\ntools: {}\n', [`${at}:1:1: YAML directives are refused`]],
    ['--- {}\n--- {}\n', [`${at}:2:1: more than one YAML document: use one file each`]],
    [
      'tools: &a {}\nagents: *a\n',
      [`${at}:1:11: YAML anchors are refused: write it out`, `${at}:2:9: YAML aliases are refused: write it out`],
    ],
    ['tools: { <<: {} }\n', [`${at}:1:10: YAML merge keys are refused: write it out`]],
    ['tools: !!map {}\n', []],
    ['tools: !secret x\n', [`${at}:1:8: not YAML: Unresolved tag: !secret`]],
    ['1: x\n', [`${at}:1:1: a key must be text: quote it`]],
    ['__proto__: {}\n', [`${at}:1:1: a key must not be __proto__`]],
    ['tools: 9007199254740993\n', [`${at}:1:8: this number is not exact: quote it, or write a smaller one`]],
    ['tools: .inf\n', [`${at}:1:8: this number is not exact: quote it, or write a smaller one`]],
    ['- a\n', [`${at}:1:1: a list is not a policy file: write upstreams, tools, agents and people`]],
    ['', []],
    ['tools:\nagents:\n', []],
    ['tools: 5\n', [`${at}:1:8: 5 is not a map`]],
    [
      'tool: {}\n',
      [`${at}:1:1: "tool" is not a key here (known: upstreams, tools, agents and people); did you mean "tools"?`],
    ],
  ])('%j', (yaml, faults) => {
    expect(listPolicyFaults(yaml)).toEqual(faults);
  });
});

describe('shape', () => {
  test.each<[string, string[]]>([
    [upstream('adapter: ftp'), [`${at}:2:17: "ftp" is not one of http, mcp`]],
    [upstream('adapter: htp, url: "http://x"'), [`${at}:2:17: "htp" is not one of http, mcp; did you mean "http"?`]],
    [upstream('url: "http://x"'), [`${at}:2:3: "adapter" is missing`]],
    [upstream('adapter: http'), [`${at}:2:3: an http upstream needs a url`]],
    [upstream('adapter: http, url: nowhere'), [`${at}:2:28: the url is not a URL: write https://host/path`]],
    [upstream('adapter: http, url: "ftp://x"'), [`${at}:2:28: the url must begin with https:// or http://`]],
    [upstream('adapter: http, url: "http://a:b@x"'), [`${at}:2:28: no credentials in a url: put them in headers`]],
    [upstream('adapter: http, url: "http://x?a=1"'), [`${at}:2:28: a url ends with its path: no ? and no #`]],
    [
      upstream('adapter: http, url: "http://x", import: "*"'),
      [
        `${at}:2:48: "*" is not an OpenAPI document: write the path of a .yaml, .yml or .json file, as seen from this one, below the policies`,
      ],
    ],
    [
      upstream('adapter: mcp, command: [x], import: "a b"'),
      [`${at}:2:44: "a b" is not a tool name or glob: letters, digits, _ - . and *`],
    ],
    [upstream('adapter: mcp'), [`${at}:2:3: an mcp upstream needs exactly one of url and command`]],
    [upstream('adapter: http, url: "http://x", timeout: 10'), [`${at}:2:49: 10 is not a string`]],
    [
      upstream('adapter: http, url: "http://x", timeout: 10 s'),
      [`${at}:2:49: "10 s" is not a duration: write 500ms, 10s, 5m, 24h or 30d`],
    ],
    [upstream('adapter: http, url: "http://x", timeout: 2d'), [`${at}:2:49: a timeout is at most 24h`]],
    [upstream('adapter: http, url: "http://x", concurrency: 0'), [`${at}:2:53: 0 is too small: at least 1`]],
    [upstream('adapter: http, url: "http://x", breaker: { threshold: 50 }'), [`${at}:2:62: 50 is not a string`]],
    [
      upstream('adapter: http, url: "http://x", breaker: { treshold: 50% }'),
      [
        `${at}:2:51: "treshold" is not a key here (known: threshold, minimum, window and cooldown); did you mean "threshold"?`,
      ],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { host: x }'),
      [`${at}:2:57: host is written by the gateway itself`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { oncegate-lock-token: "1" }'),
      [`${at}:2:72: oncegate-lock-token is written by the gateway itself`],
    ],
    [upstream('adapter: http, url: "http://x", headers: { "a b": x }'), [`${at}:2:51: "a b" is not a header name`]],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "x\\ny" }'),
      [`${at}:2:54: the value of a holds characters no header may have`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "${env.NOPE}" }'),
      [`${at}:2:57: the environment variable NOPE is not set`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "${file(\'/nope\')}" }'),
      [`${at}:2:57: /nope cannot be read: ENOENT`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "${file(\'/dev/zero\')}" }'),
      [`${at}:2:57: /dev/zero is not a file`],
    ],
    [
      upstream('adapter: http, url: "http://x", headers: { a: "${args.x}" }'),
      [`${at}:2:57: only \${env.NAME} and \${file("/path")} are known here`],
    ],
    [
      upstream('adapter: http, url: "http://${file(\'/etc/hostname\')}"'),
      [
        `${at}:2:38: only \${env.NAME} is known here`,
        `${at}:2:28: the url is not a URL: write https://host/path`,
      ].sort(),
    ],
    [
      'upstreams:\n  "a b": { adapter: http, url: "http://x" }\n',
      [`${at}:2:3: "a b" is not a name: letters, digits, _ and -`],
    ],
    [
      'upstreams:\n  oncegate: { adapter: http, url: "http://x" }\n',
      [`${at}:2:3: oncegate is the name of the gateway itself`],
    ],
    ['upstreams:\n  u:\n', [expect.stringMatching(/:2:5: nothing is not a map: it may have adapter, url, /)]],
    [
      tool('efect: read'),
      [
        `${at}:4:21: "efect" is not a key here (known: upstream, description, title, output, input, effect, request, once, key, undo, observe, locks, timeout, retry, noEffect, redact, result, record, untrusted and repeats); did you mean "effect"?`,
      ],
    ],
    [tool('once: { by: magic }'), [`${at}:4:33: "magic" is not one of key, idempotent, probe, none`]],
    [tool('once: { by: nature }'), [`${at}:4:33: "nature" was renamed: write idempotent`]],
    [
      tool('once: { by: key, headers: x }'),
      [`${at}:4:38: "headers" is not a key here (known: by, header, field and lifetime); did you mean "header"?`],
    ],
    [tool('once: { by: key }'), [`${at}:4:21: once by key needs exactly one of header and field`]],
    [tool('once: { by: key, header: A, field: b }'), [`${at}:4:21: once by key needs exactly one of header and field`]],
    [
      tool('effect: read, once: { by: idempotent }'),
      [`${at}:4:35: once is for writes: a read has no effect to repeat or undo`],
    ],
    [
      tool('record: false'),
      [`${at}:4:21: record: false is for reads: a write that nobody recorded could happen twice`],
    ],
    [
      tool('effect: read, record: false, locks: [all]'),
      [`${at}:4:50: locks needs the ledger: leave out record: false, or locks`],
    ],
    [tool('locks: x'), [`${at}:4:28: "x" is not a list`]],
    [tool('noEffect: [200]'), [`${at}:4:32: 200 is too small: at least 300`]],
    [tool('retry: { base: 10s, max: 1s }'), [`${at}:4:46: max is shorter than base`]],
    [tool('redact: [card]'), [`${at}:4:30: "card" is not a path: write args.card or result.token`]],
    [
      tool('request: { method: post }'),
      [`${at}:4:40: "post" is not one of GET, HEAD, POST, PUT, PATCH, DELETE; did you mean "POST"?`],
    ],
    [tool('request: { path: charges }'), [`${at}:4:38: a path begins with /`]],
    [tool('request: { path: "/a?b=1" }'), [`${at}:4:38: a path has no ? and no #: use query`]],
    [tool('request: { path: "/a/../b" }'), [`${at}:4:38: a path has no . and .. segments, however they are written`]],
    [
      tool('request: { path: "/a/%2e%2E%2fb" }'),
      [`${at}:4:38: a path has no . and .. segments, however they are written`],
    ],
    [
      tool('request: { headers: { Oncegate-Lock-Token: "7" } }'),
      [`${at}:4:43: Oncegate-Lock-Token is written by the gateway itself`],
    ],
    [
      tool('once: { by: key, header: Content-Length }'),
      [`${at}:4:46: Content-Length is written by the gateway itself: choose another`],
    ],
    [
      tool('once: { by: key, header: oncegate-lock-token }'),
      [`${at}:4:46: oncegate-lock-token is written by the gateway itself: choose another`],
    ],
    [tool('request: { method: GET, body: {} }'), [`${at}:4:45: GET has no body`]],
    [rule('allow: t, deny: r'), [`${at}:9:9: a rule needs exactly one of allow and deny`]],
    [rule('when: "true"'), [`${at}:9:9: a rule needs exactly one of allow and deny`]],
    [rule('allow: t, rate: 20'), [`${at}:9:27: 20 is not a string`]],
    [rule('allow: t, rate: 20/min'), [`${at}:9:27: "20/min" is not a rate: write 20/m (per s, m, h or d)`]],
    [rule('allow: t, approve: always'), [`${at}:9:30: "always" is not one of never`]],
    [
      rule('allow: t, approve: { qorum: 1 }'),
      [`${at}:9:32: "qorum" is not a key here (known: when, by, quorum and within); did you mean "quorum"?`],
    ],
    [
      rule('deny: t, rate: 20/m, approve: never'),
      [`${at}:9:20: a deny has no rate: it denies`, `${at}:9:32: a deny has no approve: it denies`],
    ],
  ])('%s', (yaml, faults) => {
    expect(listPolicyFaults(yaml)).toEqual(faults);
  });
});

const PEOPLE = `people:
  alice: { roles: [approver], groups: [finance] }
  bob: { roles: [viewer], groups: [finance] }
`;

describe('across', () => {
  test.each<[string, string[]]>([
    [
      'tools:\n  t: { upstream: pay }\nagents:\n  bot: { rules: [{ allow: t }] }\n',
      [`${at}:2:18: there is no upstream "pay"`],
    ],
    [`${UPSTREAM_YAML}tools:\n  t: { upstream: uu }\n`, [`${at}:4:18: there is no upstream "uu"; did you mean "u"?`]],
    [tool('undo: { kind: compensable, tool: refund }'), [`${at}:4:54: there is no tool "refund"`]],
    [tool('undo: { kind: compensable }'), [`${at}:4:21: compensable needs the tool that undoes it`]],
    [
      tool('undo: { kind: irreversible, tool: t }'),
      [`${at}:4:49: irreversible has no undo tool: write kind: compensable or reversible`],
    ],
    [
      tool('once: { by: probe, probe: { tool: t, applied: "true" } }'),
      [`${at}:4:55: t is not a read: give it effect: read`],
    ],
    [tool('observe: { tool: nope, satisfied: "true" }'), [`${at}:4:38: there is no tool "nope"`]],
    [
      tool('undo: { kind: compensable, tool: t, args: { a: "${before.x}" } }'),
      [`${at}:4:71: "before" is not known here (known: args, result and agent)`],
    ],
    [
      tool('once: { by: probe, probe: { tool: t, applied: result.ok && before.x } }'),
      [
        `${at}:4:55: t is not a read: give it effect: read`,
        `${at}:4:80: "before" is not known here (known: result and args)`,
      ],
    ],
    [
      tool('input: { type: object, properties: { card: {} } }, locks: ["card/${args.crd}"]'),
      [`${at}:4:88: args.crd is not in the input schema (it has: card); did you mean "card"?`],
    ],
    [
      tool('input: { type: object, properties: {}, additionalProperties: false }, key: "${args.id}"'),
      [`${at}:4:99: args.id is not in the input schema (it has: nothing)`],
    ],
    [tool('key: order'), [`${at}:4:26: this key is the same for every call: write "\${args.order_id}"`]],
    [tool('key: "${args.x +}"'), [`${at}:4:37: not an expression: it ends too early`]],
    [
      tool('key: { of: order, scope: shared }'),
      [`${at}:4:32: this key is the same for every call: write "\${args.order_id}"`],
    ],
    [
      tool('key: { of: "${args.id}/${agent}", scope: shared }'),
      [`${at}:4:46: "agent" is not known here (known: args)`],
    ],
    [tool('key: { of: "${args.id}", scope: everybody }'), [`${at}:4:53: "everybody" is not one of agent, shared`]],
    [tool('key: { scope: shared }'), [`${at}:4:21: "of" is missing`]],
    [tool('key: { of: "${args.id}", shared: true }'), [`${at}:4:46: "shared" is not a key here (known: of and scope)`]],
    [tool('key: 7'), [`${at}:4:26: 7 is not a string or a map`]],
    [
      tool('effect: read, key: { of: "${args.id}", scope: shared }'),
      [`${at}:4:67: a read has no effect to share: several agents read for themselves`],
    ],
    [
      tool('observe: { tool: r, satisfied: "true", settles: soon }'),
      [
        `${at}:4:38: there is no tool "r"`,
        `${at}:4:69: "soon" is not a duration: write 0s, 500ms, 10s, 5m, 24h or 30d`,
      ],
    ],
    [
      tool(
        'once: { by: probe, probe: { tool: r, applied: "true" } }, observe: { tool: r, satisfied: "true", settles: 1s }',
      ).replace('agents:', '  r: { upstream: u, effect: read, request: { path: /r } }\nagents:'),
      [`${at}:4:118: a doubt about this tool is ended by its probe: settles belongs to once`],
    ],
    [tool('input: { type: string }'), [`${at}:4:36: the arguments of a tool are always an object: write type: object`]],
    [
      tool('input: { type: object, properties: { a: { type: strin } } }'),
      [
        `${at}:4:21: not a JSON Schema: schema is invalid: data/properties/a/type must be equal to one of the allowed values, data/properties/a/type must be array, data/properties/a/type must match a schema in anyOf`,
      ],
    ],
    [
      tool('input: { properties: { a: { pattern: "(a+)+" } } }'),
      [`${at}:4:58: the pattern could stall the gateway: it has a repetition inside a repetition`],
    ],
    [
      tool('input: { properties: { a: { $ref: "http://x/y" } } }'),
      [`${at}:4:55: a reference outside this schema is refused: use #/$defs/…`],
    ],
    [
      tool('input: { properties: { a: { uniqueItems: true } } }'),
      [`${at}:4:62: uniqueItems needs items of a scalar type: comparing objects costs the square of their number`],
    ],
    [
      `${UPSTREAM_YAML}tools:
  a.one: { upstream: u, request: { method: GET, path: "/x/\${args.a}" } }
  a.two: { upstream: u, request: { method: GET, path: "/x/\${args.b}" } }
  a.three: { upstream: u, request: { method: PUT, path: "/x/\${args.b}" } }
`,
      [`${at}:5:3: a.two and a.one are the same request: GET /x/{}`],
    ],
    [
      `${UPSTREAM_YAML}tools:\n  a.b__c: { upstream: u, request: { path: /1 } }\n  a__b.c: { upstream: u, request: { path: /2 } }\n`,
      [`${at}:5:3: models would see a__b.c and a.b__c both as a__b__c`],
    ],
    [
      `${UPSTREAM_YAML}tools:\n  ${'a'.repeat(60)}.bcd: { upstream: u }\n`,
      [`${at}:4:3: models would see ${'a'.repeat(60)}__bcd, which is longer than 64 characters`],
    ],
    [
      `${UPSTREAM_YAML}tools:\n  "a..b": { upstream: u }\n`,
      [`${at}:4:3: "a..b" is not a tool name: letters, digits, _ and -, in parts joined by dots`],
    ],
    [
      `${UPSTREAM_YAML}tools:\n  oncegate.x: { upstream: u }\n`,
      [`${at}:4:3: oncegate.* are the tools of the gateway itself`],
    ],
    [
      'upstreams:\n  crm: { adapter: mcp, command: [x] }\ntools:\n  other.x: { upstream: crm }\n',
      [`${at}:4:3: a tool of the mcp upstream crm is named crm.<name>`],
    ],
    [
      'upstreams:\n  c: { adapter: mcp, command: [x] }\ntools:\n  c.x: { upstream: c, once: { by: key, header: K } }\n',
      [`${at}:4:48: a command takes no headers, so no key would arrive: use field`],
    ],
    [
      'upstreams:\n  c: { adapter: mcp, command: [x], import: "*" }\ntools:\n  c.x: { upstream: c, undo: { kind: compensable, tool: c.y } }\n',
      [],
    ],
    [rule('allow: tt'), [`${at}:9:11: this rule can never match: there is no tool "tt"; did you mean "t"?`]],
    [
      rule('allow: oncegate.begin_sagas'),
      [
        `${at}:9:11: this rule can never match: there is no tool "oncegate.begin_sagas"; did you mean "oncegate.begin_saga"?`,
      ],
    ],
    [rule('allow: t, effect: read'), [`${at}:9:11: this rule can never match: t is a write`]],
    [rule('allow: t, when: args.c > 5'), [`${at}:9:27: args.c is not in the tool's input schema (it has: a and b)`]],
    [
      rule('allow: t, when: args.a > 5 && "x"'),
      [`${at}:9:27: not an expression: Logical operator requires bool operands, got 'string'`],
    ],
    [
      rule('allow: t, when: result.ok'),
      [`${at}:9:27: "result" is not known here (known: args, agent, tool, saga, run, now, history and tainted)`],
    ],
    [
      rule('allow: t, budget: { sum: "\'x\'", max: 1, per: 1h }'),
      [`${at}:9:37: the expression must yield a number, but yields string`],
    ],
    [
      rule('allow: t, approve: { by: [finanze] }', PEOPLE),
      [`${at}:9:37: nobody is in the group "finanze"; did you mean "finance"?`],
    ],
    [
      rule('allow: t, approve: { by: [finance], quorum: 2 }', PEOPLE),
      [`${at}:9:21: quorum 2 can never be reached: only alice can approve this`],
    ],
    [
      `agents:\n  a: { keys: ["sha256:xyz"] }\n`,
      [`${at}:2:15: a key is "sha256:" and the 64 hex digits of its SHA-256; npx oncegate key new prints one`],
    ],
    [`agents:\n  a: { keys: ["\${env.NOPE}"] }\n`, [`${at}:2:18: the environment variable NOPE is not set`]],
    [
      `agents:\n  a: { keys: ["sha256:${HEX_A}"] }\npeople:\n  b: { keys: ["sha256:${HEX_A.toUpperCase()}"] }\n`,
      [`${at}:4:8: person b has a key of agent a`],
    ],
    ['people:\n  a: { roles: [boss] }\n', [`${at}:2:16: "boss" is not one of viewer, approver, operator, admin`]],
  ])('%s', (yaml, faults) => {
    expect(listPolicyFaults(yaml)).toEqual(faults);
  });

  test('a name defined in two files names both places', () => {
    const one = 'upstreams:\n  u: { adapter: http, url: "http://x" }\n';
    expect(listPolicyFaults({ 'a.yaml': one, 'sub/b.yaml': `# again\n${one}` })).toEqual([
      'policies/sub/b.yaml:3:3: "u" is already defined at policies/a.yaml:2:3',
    ]);
  });

  test('every fault is told at once, in the order of the files', () => {
    expect(
      listPolicyFaults({
        'b.yaml': 'tool: 1\nagents: 2\n',
        'a.yaml': 'tools: [\n',
        'c_test.yaml': 'tests: [{ name: x }]\n',
      }),
    ).toEqual([
      'policies/a.yaml:2:1: not YAML: Flow sequence in block collection must be sufficiently indented and end with a ]',
      'policies/b.yaml:1:1: "tool" is not a key here (known: upstreams, tools, agents and people); did you mean "tools"?',
      'policies/b.yaml:2:9: 2 is not a map',
      'policies/c_test.yaml:1:9: "agent" is missing',
      'policies/c_test.yaml:1:9: "expect" is missing',
      'policies/c_test.yaml:1:9: "tool" is missing',
    ]);
  });

  test('a fault of shape hides no other, wherever it is', () => {
    const told = listPolicyFaults(
      'upstreams:\n  u: { adapter: http, url: "ftp://x", timeout: soon }\n' +
        'tools:\n  u.x: { upstream: u, once: { by: magic }, request: { method: POST, path: /x, body: "${args +}" } }\n' +
        'agents:\n  a:\n    keys: [plain]\n    rules:\n      - { allow: u.x, rate: often }\n      - { allow: u.x, deny: u.x }\n      - { allow: u.x, when: "args.n <=" }\n',
    );
    expect(told.map((fault) => fault.split(': ')[0])).toEqual(
      ['2:28', '2:48', '4:35', '4:94', '7:12', '9:29', '10:9', '11:39'].map((place) => `policies/p.yaml:${place}`),
    );
  });

  test('a key that nobody knows hides no other fault', () => {
    const told = listPolicyFaults('tools:\n  a.b: { upstream: nowhere, zzz: 1, locks: ["${args.x"] }\n').join('\n');
    expect(told).toContain('"zzz" is not a key here');
    expect(told).toContain('"nowhere"');
    expect(told.split('\n')).toHaveLength(3);
  });

  test('no fault shows what came from the environment', () => {
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
      [`${at}:4:3: no agent may call t`, `${at}:5:3: no agent may call r`, `${at}:9:11: x.* matches no tool`],
    ],
    [rule('allow: "*", effect: read'), [`${at}:4:3: no agent may call t`]],
    [
      rule('allow: "*" }\n      - { allow: t'),
      [`${at}:10:11: never reached: bot rule 1 (policies/p.yaml:9) already allows all of it`],
    ],
    [rule('allow: "*", approve: { quorum: 1 }'), [`${at}:9:23: nobody can approve this: there are no people`]],
    ['agents:\n  a: {}\n', [`${at}:2:3: a has no rules: it may call nothing`]],
    [
      tool('input: { properties: { a: {} } }, key: "${args.b}", redact: [args.c]'),
      [
        `${at}:4:63: args.b is not in the input schema (it has: a)`,
        `${at}:4:82: args.c is not in the input schema (it has: a)`,
      ],
    ],
    [
      tool('observe: { tool: r, satisfied: "true", settles: 1s }, locks: [{ key: a, mode: shared }]').replace(
        'agents:',
        '  r: { upstream: u, effect: read, request: { path: /r } }\nagents:',
      ),
      [`${at}:4:60: what is seen proves who did it only while nobody else may change it: declare an exclusive lock`],
    ],
  ])('%s', (yaml, warnings) => {
    expect(listPolicyFaults(yaml)).toEqual([]);
    expect(listPolicyWarnings(yaml)).toEqual(warnings);
  });
});
