// Calls, newest first.

import { withQuery } from './api.js';
import { h } from './dom.js';
import { duration, number, words } from './format.js';
import { Pages } from './pages.js';
import { badge, button, callLink, code, empty, row, sagaLink, since, table } from './parts.js';

/** @import { Call, View } from './types.d.ts' */
/** @typedef {Record<string, string | undefined>} Filter */

const STATES = ['held', 'ready', 'sending', 'in_doubt', 'succeeded', 'failed', 'rejected', 'expired', 'cancelled'];
const HEADS = ['started', 'state', 'tool', 'agent', 'call', 'saga', 'duration'];

/** @typedef {{ items: Call[], cursor: string | null, newer: { count: number, more: boolean } }} CallList */

/** @param {Filter} filter @returns {View<CallList>} */
export function callsView(filter) {
  /** Only calls before this time are listed, so that rows do not move while a person reads. A button shows newer ones. @type {string | undefined} */
  let until;
  /** A flag for the next load, because a load that is already running would set `until` again. */
  let wantsNewest = true;
  /** @type {Pages<Call>} */
  const pages = new Pages((page) => withQuery('/admin/calls', { ...filter, until, ...page }));
  /** @type {Pages<Call>} */
  const top = new Pages((page) => withQuery('/admin/calls', { ...filter, since: until, ...page }));
  return {
    title: 'Calls',
    isAffectedBy: ({ data }) => 'txn' in data,
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
      const isEmpty = items.length === 0 && newer.count === 0 && cursor === null;
      return [
        filterBar(filter),
        h('div', { class: 'newer', role: 'status' }, newer.count > 0 && button(label, showNewer, { tone: 'quiet' })),
        isEmpty ? emptyList(filter) : table(HEADS, items.map(callRow), 'Calls'),
        cursor !== null && h('p', {}, button('Older calls', showOlder)),
      ];
    },
  };
}

/** The start of this call plus 1 ms, so that `until` includes it: the API cuts times to milliseconds. @param {Call | undefined} newest */
function justAfter(newest) {
  return newest === undefined ? undefined : new Date(Date.parse(newest.createdAt) + 1).toISOString();
}

/** @param {Call} call */
function callRow({ txn, state, tool, agent, saga, createdAt, settledAt, undoes, undo }) {
  const time = settledAt === null ? '' : duration(Date.parse(settledAt) - Date.parse(createdAt));
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
      time,
    ],
    HEADS,
  );
}

/** @param {Filter} filter */
function emptyList(filter) {
  const isFiltered = Object.values(filter).some(Boolean);
  return isFiltered
    ? empty('No call matches this filter.', h('a', { href: '#/calls' }, 'Show all calls'))
    : empty(
        'There are no calls yet.',
        'An agent makes one with ',
        code('POST /v1/tools/{tool}'),
        ' and its key; ',
        code('npm run demo'),
        ' makes a few dozen.',
      );
}

/** The filter is in the address, so that it can be shared. @param {Filter} filter */
function filterBar(filter) {
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const entries = Object.fromEntries(/** @type {[string, string][]} */ ([...new FormData(form).entries()]));
    location.hash = withQuery(
      '#/calls',
      Object.fromEntries(Object.entries(entries).map(([name, value]) => [name, value.trim()])),
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
