// Elements that several views share.

import { h } from './dom.js';
import { relative, short, words } from './format.js';

/** @import { Problem } from './api.js' */
/** @import { Child, Json } from './types.d.ts' */

/** The colour of a state: good, bad, doubt, wait (for a person) or plain. */
const TONES = /** @type {Record<string, string>} */ ({
  succeeded: 'good',
  committed: 'good',
  approved: 'good',
  unopposed: 'good',
  rolled_back: 'good',
  done: 'good',
  closed: 'plain',
  failed: 'bad',
  rejected: 'bad',
  parked: 'bad',
  irreversible: 'bad',
  cannot: 'bad',
  in_doubt: 'doubt',
  half_open: 'doubt',
  rolling_back: 'doubt',
  running: 'doubt',
  due: 'doubt',
  held: 'wait',
  pending: 'wait',
});

/** @param {string} state */
export const toneOf = (state) => TONES[state] ?? 'plain';

/** A state as a coloured word. @param {string} state @param {string} [tone] */
export function badge(state, tone = toneOf(state)) {
  return h('span', { class: `badge ${tone}` }, words(state));
}

/** The state of an undo. @param {string} state */
export function undoBadge(state) {
  return state === 'none' ? h('span', { class: 'dim' }, 'not requested') : badge(state);
}

/** A time, relative to now; `keepTime` keeps it current. @param {string | null} at */
export function since(at) {
  if (at === null) return h('span', { class: 'dim' }, 'never');
  const title = new Date(at).toLocaleString();
  return h('time', { datetime: at, title, class: 'since' }, relative(Date.parse(at), Date.now()));
}

/** Updates every relative time of the page once a second. */
export function keepTime() {
  setInterval(() => {
    for (const time of document.querySelectorAll('time.since')) {
      const text = relative(Date.parse(time.getAttribute('datetime') ?? ''), Date.now());
      if (time.textContent !== text) time.textContent = text;
    }
  }, 1000);
}

/** @param {string} txn */
export const callLink = (txn) => h('a', { class: 'id', href: `#/calls/${txn}`, title: txn }, short(txn));
/** @param {string} saga */
export const sagaLink = (saga) => h('a', { class: 'id', href: `#/sagas/${saga}`, title: saga }, short(saga));

/** @param {string} text */
export const code = (text) => h('code', {}, text);

/** Indented JSON; long values scroll. @param {Json | undefined} value @param {string} label */
export function json(value, label) {
  const text = JSON.stringify(value ?? null, null, 2);
  return h('pre', { class: 'json', tabindex: 0, 'aria-label': label }, text);
}

/** A list of names and values, without the absent values. @param {readonly (readonly [string, Child])[]} pairs */
export function facts(pairs) {
  const present = pairs.filter(([, value]) => value !== null && value !== undefined && value !== false);
  return h(
    'dl',
    { class: 'facts' },
    present.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))),
  );
}

/** @param {string} title @param {Child} aside @param {...Child} children */
export function section(title, aside, ...children) {
  return h('section', {}, h('div', { class: 'bar' }, h('h2', {}, title), aside), children);
}

/** An empty state, with a hint what to do. @param {string} what @param {...Child} next */
export function empty(what, ...next) {
  return h('div', { class: 'empty' }, h('p', {}, what), next.length > 0 && h('p', { class: 'dim' }, next));
}

/** @param {Problem} problem */
export function problemBox(problem) {
  return h(
    'div',
    { class: 'problem', role: 'alert' },
    h('strong', {}, problem.title),
    problem.message !== '' && h('p', {}, problem.message),
    problem.faults.length > 1 &&
      h(
        'ul',
        {},
        problem.faults.map((fault) => h('li', {}, fault)),
      ),
    problem.advice !== '' && h('p', { class: 'dim' }, problem.advice),
  );
}

/**
 * @param {readonly string[]} heads
 * @param {readonly HTMLElement[]} rows
 * @param {string} label
 */
export function table(heads, rows, label) {
  return h(
    'div',
    { class: 'scroll' },
    h(
      'table',
      { 'aria-label': label },
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          heads.map((head) => h('th', { scope: 'col' }, head)),
        ),
      ),
      h('tbody', {}, rows),
    ),
  );
}

/** @param {string} key @param {readonly Child[]} cells @param {readonly string[]} [heads] */
export function row(key, cells, heads = []) {
  return h(
    'tr',
    { 'data-key': key },
    cells.map((cell, position) => h('td', { 'data-head': heads[position] }, cell)),
  );
}

/**
 * @param {string} label
 * @param {() => void} run
 * @param {{ tone?: 'danger' | 'main' | 'quiet', disabled?: boolean, why?: string, name?: string }} [how]
 */
export function button(label, run, { tone, disabled = false, why, name } = {}) {
  const attributes = { type: 'button', class: tone, disabled, title: disabled ? why : undefined, 'aria-label': name };
  return h('button', { ...attributes, on: { click: run } }, label);
}
