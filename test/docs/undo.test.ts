import { describe, expect, it } from 'vitest';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import { renderUndoArguments } from '../../gateway/policy/compile/render-undo-arguments.ts';
import { compileValidPolicies } from '../policy/example.ts';
import { readBlocks } from './blocks.ts';
import { fillEnv } from './policies.ts';

const PAGE = 'docs/guides/undo.md';
const texts = (await readBlocks(PAGE))
  .filter(({ language, mark }) => language === 'yaml' && mark === '')
  .map(({ text }) => text);
const findTool = (yaml: string) => /^ {2}(\S+):\n {4}upstream:/m.exec(yaml)?.[1] ?? 'no tool';

it(`${PAGE} has a policy for each service that it describes`, () => {
  expect(texts.map(findTool)).toEqual([
    'settings.set',
    'reports.refresh',
    'square.charge',
    'issues.open',
    'runbook.write',
    'dns.set',
    'mail.send',
  ]);
});

interface Case {
  readonly args: JsonObject;
  readonly result?: Json;
  readonly before?: Json;
  readonly undo: JsonObject;
}

const issue = { owner: 'acme', repo: 'shop', title: 'Move Ann (R-7)' };
const gist = { gist: 'abc', content: 'new' };
const record = { domain: 'example.com', name: 'www', type: 'A', ttl: 3600, records: ['192.0.2.2'] };
const recordName = { domain: 'example.com', name: 'www', type: 'A' };

/** All policies of the page load side by side. */
describe(`the undos of ${PAGE}`, () => {
  const files = Object.fromEntries(texts.map((yaml, i) => [`${i}.yaml`, yaml]));
  const policies = compileValidPolicies(files, fillEnv(texts.join('\n')));

  it.each<[string, Case]>([
    [
      'square.charge',
      {
        args: { source: 'cnon:1', amount: 4500, currency: 'USD' },
        result: { payment: { id: 'pay_1', status: 'COMPLETED' } },
        undo: { payment: 'pay_1', amount: 4500, currency: 'USD' },
      },
    ],
    ['issues.open', { args: issue, result: { number: 7 }, undo: { owner: 'acme', repo: 'shop', number: 7 } }],
    [
      'issues.open',
      {
        args: issue,
        result: [
          { number: 8, title: 'Other' },
          { number: 7, title: issue.title },
        ],
        undo: { owner: 'acme', repo: 'shop', number: 7 },
      },
    ],
    [
      'runbook.write',
      { args: gist, before: { files: { 'runbook.md': { content: 'old' } } }, undo: { gist: 'abc', content: 'old' } },
    ],
    ['runbook.write', { args: gist, before: { files: {} }, undo: { gist: 'abc', content: null } }],
    [
      'dns.set',
      {
        args: record,
        before: { ttl: 7200, records: ['192.0.2.1'] },
        undo: { ...recordName, ttl: 7200, records: ['192.0.2.1'] },
      },
    ],
    ['dns.set', { args: record, before: null, undo: { ...recordName, ttl: 3600, records: [] } }],
    [
      'settings.set',
      { args: { name: 'a', value: 'new' }, before: { value: 'old' }, undo: { name: 'a', value: 'old' } },
    ],
    ['settings.set', { args: { name: 'a', value: 'new' }, before: null, undo: { name: 'a', value: null } }],
  ])(
    '%s: the arguments of its undo can be built, and fit the undo tool',
    (name, { args, result = null, before, undo }) => {
      const tool = policies.tools.get(name);
      expect(tool?.faults(args)).toEqual([]);
      const scope = { args, result, agent: 'bot', ...(before !== undefined && { before }) };
      const undoArgs = renderUndoArguments(tool?.undo.template ?? null, scope) as JsonObject;
      expect(undoArgs).toEqual(undo);
      const undoTool = policies.tools.get(tool?.undo.tool ?? '');
      expect(undoTool?.faults(undoArgs)).toEqual([]);
      expect(undoTool?.request?.body?.({ args: undoArgs, agent: 'bot' })).toBeDefined();
    },
  );

  it.each<[string, JsonObject, Json, boolean]>([
    ['runbook.write', gist, { files: { 'runbook.md': { content: 'new' } } }, true],
    ['runbook.write', gist, { files: {} }, false],
    ['dns.set', record, { ttl: 3600, records: ['192.0.2.2'] }, true],
    ['dns.set', record, { ttl: 3600, records: ['192.0.2.1'] }, false],
    ['dns.set', record, null, false],
    ['settings.set', { name: 'a', value: 'v' }, { value: 'v' }, true],
    ['settings.set', { name: 'a', value: 'v' }, null, false],
  ])('%s with %j, after observing %j: satisfied %s', (name, args, observed, satisfied) => {
    expect(policies.tools.get(name)?.observe?.satisfied({ args, observed })).toBe(satisfied);
  });

  it('restoring a gist writes the old file, or deletes a file that did not exist', () => {
    const body = policies.tools.get('runbook.restore')?.request?.body;
    const buildBody = (content: string | null) => body?.({ args: { gist: 'abc', content }, agent: 'bot' });
    expect(buildBody('old')).toEqual({ files: { 'runbook.md': { content: 'old' } } });
    expect(buildBody(null)).toEqual({ files: { 'runbook.md': null } });
  });
});
