// The policies in force, and an explanation of one call.

import { asProblem, get, post, postTyped } from './api.js';
import { ask } from './ask.js';
import { h, show } from './dom.js';
import { number, plural, words } from './format.js';
import { badge, button, code, empty, facts, json, problemBox, row, section, table } from './parts.js';

/** @import { Context, View } from './types.d.ts' */
/** @typedef {{ version: string, files: string[], upstreams: string[], tools: string[], agents: string[], people: string[] }} PolicyNames */
/** @typedef {{ names: PolicyNames, refused: string[] }} PoliciesData */

/** @param {Record<string, string | undefined>} query @returns {View<PoliciesData>} */
export function policiesView(query) {
  return {
    title: 'Policies',
    load: async () => {
      const [names, stats] = await Promise.all([get('/admin/policies'), get('/admin/stats')]);
      return { names, refused: stats.policies.refused };
    },
    isAffectedBy: ({ name }) => name === 'policies',
    draw: (data, context) => [
      refusedBox(data.refused),
      section(
        'In force',
        button('Reload', () => void reload(context), {
          disabled: !context.hasRole('operator'),
          why: 'You need the role operator.',
        }),
        inForce(data.names),
      ),
      section(
        'Explain',
        h('span', { class: 'dim' }, 'What the gateway would answer to a call. Nothing is sent.'),
        explainForm(data.names, query),
      ),
    ],
  };
}

/** @param {readonly string[]} faults */
function refusedBox(faults) {
  if (faults.length === 0) return null;
  return h(
    'div',
    { class: 'notice bad' },
    h(
      'div',
      {},
      h('strong', {}, `The policy files are refused: ${plural(faults.length, 'fault')}`),
      h('p', {}, 'The policies below stay in force until the files are fixed.'),
      h(
        'ul',
        { class: 'faults' },
        faults.map((fault) => h('li', {}, code(fault))),
      ),
    ),
  );
}

/** @param {Context} context */
async function reload(context) {
  try {
    await post('/admin/policies/reload');
    context.notify('The policies are reloaded and in force.');
  } catch (error) {
    const problem = asProblem(error);
    ask({
      title: 'The policies were refused',
      body: problemBox(problem),
      fields: [],
      confirm: 'Close',
      run: async () => {},
    });
  }
  await context.refresh();
}

/** @param {PolicyNames} policyNames */
function inForce({ version, files, upstreams, tools, agents, people }) {
  const names = (/** @type {readonly string[]} */ all) =>
    h(
      'details',
      {},
      h('summary', {}, number(all.length)),
      h(
        'ul',
        { class: 'names' },
        all.map((name) => h('li', {}, code(name))),
      ),
    );
  return facts([
    ['Version', code(version)],
    ['Files', files.map((name) => [code(name), ' '])],
    ['Tools', names(tools)],
    ['Agents', names(agents)],
    ['Upstreams', names(upstreams)],
    ['People', names(people)],
  ]);
}

/** @param {PolicyNames} policyNames @param {Record<string, string | undefined>} query */
function explainForm({ agents, tools }, query) {
  const answerBox = h('div', { class: 'explained', 'aria-live': 'polite', 'data-keep': true });
  const args = h('textarea', { id: 'x-args', name: 'args', rows: 4, spellcheck: 'false' });
  args.value = query['args'] ?? '{}';
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const output = /** @type {HTMLElement} */ (/** @type {HTMLElement} */ (event.target).querySelector('.explained'));
    try {
      const call = { agent: form.get('agent'), tool: form.get('tool') };
      const typed = { name: 'args', text: String(form.get('args')), what: 'The arguments are' };
      show(output, explained(await postTyped('/admin/explain', call, typed)));
    } catch (error) {
      show(output, problemBox(asProblem(error)));
    }
  };
  const options = (/** @type {readonly string[]} */ all) => all.map((each) => h('option', { value: each }, each));
  return h(
    'form',
    { class: 'explain', 'data-key': 'explain', on: { submit } },
    h(
      'div',
      { class: 'filter' },
      h(
        'div',
        { class: 'field' },
        h('label', { for: 'x-agent' }, 'Agent'),
        h('select', { id: 'x-agent', name: 'agent' }, options(agents)),
      ),
      h(
        'div',
        { class: 'field' },
        h('label', { for: 'x-tool' }, 'Tool'),
        h('input', {
          id: 'x-tool',
          name: 'tool',
          list: 'x-tools',
          required: true,
          autocomplete: 'off',
          spellcheck: 'false',
        }),
        h('datalist', { id: 'x-tools' }, options(tools)),
      ),
    ),
    h('div', { class: 'field' }, h('label', { for: 'x-args' }, 'Arguments (JSON)'), args),
    h('div', { class: 'actions left' }, h('button', { type: 'submit', class: 'main' }, 'Explain')),
    answerBox,
  );
}

/** @param {any} answer */
function explained({ decision, wouldAnswer, detail, faults, ...more }) {
  const tried = /** @type {{ rule: string, verdict: string, matched: boolean, why: string | null }[]} */ (
    decision?.tried ?? []
  );
  const heads = ['rule', 'verdict', 'matched', 'reason'];
  return [
    h(
      'p',
      {},
      badge(decision?.allowed === true ? 'allowed' : 'refused', decision?.allowed === true ? 'good' : 'bad'),
      ' ',
      decision?.rule ?? '',
      ' ',
      decision?.reason ?? detail ?? '',
    ),
    facts([
      ['Would answer', `${wouldAnswer?.status ?? ''} ${words(String(wouldAnswer?.code ?? wouldAnswer?.state ?? ''))}`],
      ['Would send', wouldAnswer?.sends === true ? 'yes' : 'no'],
    ]),
    Array.isArray(faults) &&
      h(
        'ul',
        {},
        faults.map((fault) => h('li', {}, typeof fault === 'string' ? fault : JSON.stringify(fault))),
      ),
    tried.length === 0
      ? empty('No rule was tried.')
      : table(
          heads,
          tried.map(({ rule, verdict, matched, why }) =>
            row(rule, [rule, verdict, matched ? badge('yes', 'good') : 'no', why ?? ''], heads),
          ),
          'Rules tried',
        ),
    h('details', {}, h('summary', {}, 'Whole answer'), json({ decision, wouldAnswer, ...more }, 'The whole answer')),
  ];
}
