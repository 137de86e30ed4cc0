// Charts.

import { h, svg } from './dom.js';
import { number, plural } from './format.js';

/** @import { States } from './types.d.ts' */

const WIDTH = 600;
const HEIGHT = 96;

/** The states of calls, as layers of a bar from bottom to top. */
const LAYERS = /** @type {const} */ ([
  ['good', 'succeeded', ['succeeded']],
  ['bad', 'failed or refused', ['failed', 'rejected', 'expired', 'cancelled']],
  ['wait', 'held', ['held']],
  ['doubt', 'in doubt', ['in_doubt']],
  ['plain', 'under way', ['ready', 'sending']],
]);

/** @param {States} states @param {readonly string[]} names */
const sumOf = (states, names) => names.reduce((sum, name) => sum + (states[name] ?? 0), 0);
/** @param {States} states */
const totalOf = (states) => Object.values(states).reduce((sum, count) => sum + count, 0);

/** Calls by the minute in which they started, the oldest on the left. @param {readonly States[]} minutes */
export function throughput(minutes) {
  const max = Math.max(1, ...minutes.map(totalOf));
  const step = WIDTH / minutes.length;
  const bars = minutes.flatMap((states, position) => {
    let ground = HEIGHT;
    return LAYERS.flatMap(([tone, , names]) => {
      const count = sumOf(states, names);
      if (count === 0) return [];
      // A single call among thousands must stay visible.
      const height = Math.max(2, (count / max) * (HEIGHT - 4));
      ground -= height;
      return [svg('rect', { class: tone, x: position * step + 1, y: ground, width: step - 2, height })];
    });
  });
  const label = `Calls per minute over the last hour, at most ${max}`;
  return h(
    'figure',
    { class: 'chart' },
    svg(
      'svg',
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
      svg('line', { class: 'ground', x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }),
      bars,
    ),
    h(
      'figcaption',
      {},
      h('span', {}, '60 min ago'),
      h('span', {}, `peak ${plural(max, 'call')} per minute`),
      h('span', {}, 'now'),
    ),
    h(
      'ul',
      { class: 'legend' },
      LAYERS.map(([tone, name]) => h('li', {}, h('i', { class: `dot ${tone}` }), name)),
    ),
  );
}

/** The share of each state, as one bar. @param {States} states @param {string} label */
export function shares(states, label) {
  const total = Math.max(1, totalOf(states));
  let from = 0;
  const parts = LAYERS.flatMap(([tone, , names]) => {
    const width = (sumOf(states, names) / total) * 100;
    if (width === 0) return [];
    from += width;
    return [svg('rect', { class: tone, x: from - width, y: 0, width, height: 6 })];
  });
  const texts = LAYERS.flatMap(([, name, names]) =>
    sumOf(states, names) > 0 ? [`${number(sumOf(states, names))} ${name}`] : [],
  );
  return svg(
    'svg',
    {
      class: 'shares',
      viewBox: '0 0 100 6',
      preserveAspectRatio: 'none',
      role: 'img',
      'aria-label': `${label}: ${texts.join(', ')}`,
    },
    parts,
  );
}

/** @param {States} states */
export function outcomes(states) {
  return LAYERS.map(([tone, name, names]) => ({ tone, name, count: sumOf(states, names) }));
}
