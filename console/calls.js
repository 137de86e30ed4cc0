// Calls, newest first.

import { withQuery } from './api.js';
import { h } from './dom.js';
import { duration, plural, words } from './format.js';
import { badge, button, callLink, code, empty, Pages, row, sagaLink, since, table } from './parts.js';

/** @import { Call, Context, View } from './types.d.ts' */
/** @typedef {Record<string, string | undefined>} Filter */

const STATES = ['held', 'ready', 'sending', 'in_doubt', 'succeeded', 'failed', 'rejected', 'expired', 'cancelled'];
const HEADS = ['began', 'state', 'tool', 'agent', 'call', 'saga', 'took'];

/** @param {Filter} filter @returns {View<{ items: Call[], cursor: string | null }>} */
export function callsView(filter) {
  /** @type {Pages<Call>} */
  const pages = new Pages((cursor) => withQuery('/admin/calls', { ...filter, limit: '50', cursor }));
  /** Rows stay where they are while one reads; newer ones are told of, and shown when asked for. @type {Set<string> | undefined} */
  let shown;
  const keyOf = (/** @type {Call} */ call) => call.txn;
  return {
    title: 'Calls',
    load: () => pages.load(keyOf),
    hears: ({ data }) => 'txn' in data,
    draw({ items, cursor }, context) {
      const seen = shown ?? new Set(items.map(keyOf));
      for (const call of pages.older) seen.add(call.txn);
      shown = seen;
      const newer = items.filter((call) => !seen.has(call.txn)).length;
      const showNewer = () => {
        shown = undefined;
        void context.refresh();
      };
      const rows = items.filter((call) => seen.has(call.txn)).map(callRow);
      return [
        filterBar(filter),
        h(
          'div',
          { class: 'newer', role: 'status' },
          newer > 0 && button(`Show ${plural(newer, 'newer call')}`, showNewer, { tone: 'quiet' }),
        ),
        rows.length === 0 ? nothing(filter) : table(HEADS, rows, 'Calls'),
        cursor !== null && moreButton(pages, cursor, context),
      ];
    },
  };
}

/** @param {Pages<Call>} pages @param {string} cursor @param {Context} context */
function moreButton(pages, cursor, context) {
  return h(
    'p',
    {},
    button('Older calls', async () => {
      await pages.more(cursor);
      await context.refresh();
    }),
  );
}

/** @param {Call} call */
function callRow({ txn, state, tool, agent, saga, createdAt, settledAt, undoes, undo }) {
  const took = settledAt === null ? '' : duration(Date.parse(settledAt) - Date.parse(createdAt));
  const undone =
    undo.state === 'done'
      ? [' ', badge('undone', 'plain')]
      : undoes === undefined
        ? null
        : [' ', badge('undo', 'plain')];
  return row(
    txn,
    [
      since(createdAt),
      [badge(state), undone],
      code(tool),
      agent,
      callLink(txn),
      saga === null ? '' : sagaLink(saga),
      took,
    ],
    HEADS,
  );
}

/** @param {Filter} filter */
function nothing(filter) {
  const isFiltered = Object.values(filter).some(Boolean);
  return isFiltered
    ? empty('No call fits this filter.', h('a', { href: '#/calls' }, 'Show all calls'))
    : empty(
        'No call so far.',
        'An agent makes one with ',
        code('POST /v1/tools/{tool}'),
        ' and its key; ',
        code('npm run demo'),
        ' makes some dozen.',
      );
}

/** What is asked for stands in the address, so that it can be sent to somebody. @param {Filter} filter */
function filterBar(filter) {
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const asked = Object.fromEntries(/** @type {[string, string][]} */ ([...new FormData(form).entries()]));
    location.hash = withQuery(
      '#/calls',
      Object.fromEntries(Object.entries(asked).map(([name, value]) => [name, value.trim()])),
    );
  };
  const choose = (/** @type {Event} */ event) => /** @type {HTMLSelectElement} */ (event.target).form?.requestSubmit();
  const field = (/** @type {string} */ name, /** @type {string} */ label) => {
    const input = h('input', {
      id: `f-${name}`,
      name,
      autocomplete: 'off',
      spellcheck: 'false',
      size: 16,
      placeholder: 'any',
    });
    input.value = filter[name] ?? '';
    return h('div', { class: 'field' }, h('label', { for: `f-${name}` }, label), input);
  };
  const states = ['', ...STATES].map((state) =>
    h('option', { value: state, selected: state === (filter['state'] ?? '') }, state === '' ? 'any' : words(state)),
  );
  return h(
    'form',
    { class: 'filter', role: 'search', on: { submit } },
    h(
      'div',
      { class: 'field' },
      h('label', { for: 'f-state' }, 'State'),
      h('select', { id: 'f-state', name: 'state', on: { change: choose } }, states),
    ),
    field('agent', 'Agent'),
    field('tool', 'Tool'),
    field('saga', 'Saga'),
    h('button', { type: 'submit' }, 'Filter'),
  );
}
