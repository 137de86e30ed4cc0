// The timeline of a call; positions are proportional to time.

import { h, svg } from './dom.js';
import { clock, duration, words } from './format.js';
import { toneOf } from './parts.js';

/** @import { Call, TimelineEvent } from './types.d.ts' */

const WIDTH = 600;
const EDGE = 8;

/** @param {Call} call */
export function timeline(call) {
  const events = call.timeline ?? [];
  if (events.length === 0) return h('p', { class: 'dim' }, 'There is no timeline.');
  const from = Math.min(...events.map(({ at }) => Date.parse(at)));
  const to = Math.max(from + 1, ...events.map(({ at }) => Date.parse(at)));
  const position = (/** @type {string} */ at) => EDGE + ((Date.parse(at) - from) / (to - from)) * (WIDTH - 2 * EDGE);
  const dots = events.map((event) =>
    svg(
      'circle',
      { class: toneOfEvent(event), cx: position(event.at), cy: 12, r: 5 },
      svg('title', {}, `${event.what} ${clock(event.at)}`),
    ),
  );
  const line = svg('line', { x1: EDGE, x2: WIDTH - EDGE, y1: 12, y2: 12 });
  const label = `${events.length} events in ${duration(to - from)}`;
  return [
    svg('svg', { class: 'timeline', viewBox: `0 0 ${WIDTH} 24`, role: 'img', 'aria-label': label }, line, dots),
    h('p', { class: 'dim' }, label),
    h(
      'ol',
      { class: 'events' },
      events.map((event) => entry(event, from)),
    ),
  ];
}

/** @param {TimelineEvent} event @param {number} from */
function entry({ at, what, ...more }, from) {
  const details = Object.entries(more).filter(([, value]) => value !== null && value !== undefined);
  const elapsedMs = Date.parse(at) - from;
  return h(
    'li',
    {},
    h('time', { datetime: at, title: `+${duration(elapsedMs)}` }, clock(at)),
    h('span', { class: `badge ${toneOfEvent({ at, what, ...more })}` }, words(what)),
    h(
      'span',
      {},
      details.map(([name, value]) => [
        h('span', { class: 'dim' }, `${name} `),
        typeof value === 'string' ? value : JSON.stringify(value),
        ' ',
      ]),
    ),
  );
}

/** @param {TimelineEvent} event */
function toneOfEvent({ what }) {
  return what === 'attempt_ended' ? 'doubt' : toneOf(what);
}
