// The plan of a rollback, in the order of its steps.

import { h } from './dom.js';
import { plural, short, words } from './format.js';
import { badge, code } from './parts.js';

/** @import { Plan } from './types.d.ts' */

const LABELS = /** @type {const} */ ({
  undo: ['undo', 'doubt'],
  nothing: ['leave', 'plain'],
  wait: ['wait', 'wait'],
  cancel: ['cancel', 'plain'],
  cannot: ['cannot', 'bad'],
});

/** @param {Plan} plan */
export function planList({ plan, kept, wouldEnd }) {
  const undone = plan.filter(({ does }) => does === 'undo').length;
  return h(
    'div',
    { class: 'plan' },
    h('p', {}, `${plural(undone, 'step')} would be undone, and the saga would end `, badge(wouldEnd), '.'),
    h('ol', {}, plan.map(step)),
    kept.length > 0 &&
      h('p', { class: 'dim' }, `Kept: ${kept.map(({ tool, txn }) => `${tool} ${short(txn)}`).join(', ')}`),
    wouldEnd === 'parked' &&
      h(
        'p',
        { class: 'dim' },
        'Steps that cannot be undone, and the steps that they depend on, then wait for a person.',
      ),
  );
}

/** @param {Plan['plan'][number]} step */
function step({ txn, tool, does, why, blockedBy, undo, wave }) {
  const [verb, tone] = LABELS[does];
  const reason = blockedBy === null ? why : `waits until ${short(blockedBy)} is undone`;
  return h(
    'li',
    { 'data-key': txn, 'data-wave': wave },
    badge(verb, tone),
    h('span', {}, code(tool), ' ', h('span', { class: 'id' }, short(txn))),
    h(
      'span',
      { class: 'dim' },
      does === 'undo' && undo.tool !== null ? ['with ', code(undo.tool)] : words(reason ?? ''),
    ),
    does === 'undo' && reason !== null && h('small', { class: 'dim' }, reason),
  );
}
