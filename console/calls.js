// Calls, newest first.

import { withQuery } from './api.js';
import { h } from './dom.js';
import { duration, number, words } from './format.js';
import { Pages } from './pages.js';
import { badge, button, callLink, code, empty, row, sagaLink, since, table } from './parts.js';

/** @import { Call, View } from './types.d.ts' */
/** @typedef {Record<string, string | undefined>} Filter */

const STATES = ['held', 'ready', 'sending', 'in_doubt', 'succeeded', 'failed', 'rejected', 'expired', 'cancelled'];
const HEADS = ['began', 'state', 'tool', 'agent', 'call', 'saga', 'took'];

/** @typedef {{ items: Call[], cursor: string | null, newer: { count: number, more: boolean } }} Shown */

/** @param {Filter} filter @returns {View<Shown>} */
export function callsView(filter) {
  /** Rows stay where they are while one reads: they are those before this time. Newer ones are told of, and shown when asked for. @type {string | undefined} */
  let until;
  /** For the next look: one that is under way must not bring back what it began with. */
  let wantsNewest = true;
  /** @type {Pages<Call>} */
  const pages = new Pages((page) => withQuery('/admin/calls', { ...filter, until, ...page }));
  /** @type {Pages<Call>} */
  const top = new Pages((page) => withQuery('/admin/calls', { ...filter, since: until, ...page }));
  return {
    title: 'Calls',
    hears: ({ data }) => 'txn' in data,
    async load() {
      if (wantsNewest) until = undefined;
      wantsNewest = false;
      const { items, cursor } = await pages.load();
      const newer = until === undefined ? { items: [], cursor: null } : await top.load();
      until ??= justAfter(items[0]);
      return { items, cursor, newer: { count: newer.items.length, more: newer.cursor !== null } };
    },
    draw({ items, cursor, newer }, context) {
      const showNewer = () => {
        wantsNewest = true;
        void context.refresh();
      };
      const showOlder = () => {
        pages.more();
        void context.refresh();
      };
      const label = `Show ${number(newer.count, newer.more)} newer ${newer.count === 1 && !newer.more ? 'call' : 'calls'}`;
      const isNothing = items.length === 0 && newer.count === 0 && cursor === null;
      return [
        filterBar(filter),
        h('div', { class: 'newer', role: 'status' }, newer.count > 0 && button(label, showNewer, { tone: 'quiet' })),
        isNothing ? nothing(filter) : table(HEADS, items.map(callRow), 'Calls'),
        cursor !== null && h('p', {}, button('Older calls', showOlder)),
      ];
    },
  };
}

/** The first time at which this call had begun: times are told in milliseconds. @param {Call | undefined} newest */
function justAfter(newest) {
  return newest === undefined ? undefined : new Date(Date.parse(newest.createdAt) + 1).toISOString();
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
