// The steps of a saga as a diagram: each step below the steps it depends on.

import { h, svg } from './dom.js';
import { cut, words } from './format.js';
import { toneOf } from './parts.js';

/** @import { Saga, Step } from './types.d.ts' */

const BOX = { width: 290, height: 46, gapX: 18, gapY: 26 };
/** A saga with more steps has only the table. */
const MAX_DRAWN = 60;

/** @param {Saga} saga */
export function drawSteps({ steps }) {
  if (steps.length > MAX_DRAWN)
    return h('p', { class: 'dim' }, `${steps.length} steps are too many for a diagram. The table below lists them.`);
  const direct = findDirectDependencies(steps);
  const depth = computeDepths(steps, direct);
  /** @type {Map<number, number>} */
  const filled = new Map();
  const positions = new Map(
    steps.map(({ txn }) => {
      const row = depth.get(txn) ?? 0;
      const column = filled.get(row) ?? 0;
      filled.set(row, column + 1);
      return [txn, { x: column * (BOX.width + BOX.gapX) + 1, y: row * (BOX.height + BOX.gapY) + 1 }];
    }),
  );
  const width = Math.max(1, ...filled.values()) * (BOX.width + BOX.gapX) - BOX.gapX + 2;
  const height = filled.size * (BOX.height + BOX.gapY) - BOX.gapY + 2;
  const edges = steps.flatMap(({ txn }) =>
    (direct.get(txn) ?? []).map((dependency) => drawEdge(positions.get(dependency), positions.get(txn))),
  );
  const boxes = steps.map((step, number) => drawBox(step, number + 1, positions.get(step.txn) ?? { x: 0, y: 0 }));
  return h(
    'div',
    { class: 'scroll' },
    svg(
      'svg',
      {
        class: 'steps',
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        role: 'group',
        'aria-label': 'Steps and their dependencies',
      },
      edges,
      boxes,
    ),
  );
}

/** The direct dependencies of each step, without those implied by others. @param {readonly Step[]} steps @returns {Map<string, string[]>} */
function findDirectDependencies(steps) {
  /** @type {Map<string, Set<string>>} */
  const all = new Map();
  /** @type {Map<string, string[]>} */
  const direct = new Map();
  for (const { txn, dependsOn } of steps) {
    const implied = new Set(dependsOn.flatMap((each) => [...(all.get(each) ?? [])]));
    direct.set(
      txn,
      dependsOn.filter((each) => !implied.has(each)),
    );
    all.set(txn, new Set([...implied, ...dependsOn]));
  }
  return direct;
}

/** @param {readonly Step[]} steps @param {Map<string, string[]>} direct @returns {Map<string, number>} */
function computeDepths(steps, direct) {
  const depths = new Map();
  for (const { txn } of steps)
    depths.set(txn, Math.max(-1, ...(direct.get(txn) ?? []).map((dependency) => depths.get(dependency) ?? -1)) + 1);
  return depths;
}

/** @param {{ x: number, y: number } | undefined} from @param {{ x: number, y: number } | undefined} to */
function drawEdge(from, to) {
  if (from === undefined || to === undefined) return null;
  const [x1, y1, x2, y2] = [from.x + BOX.width / 2, from.y + BOX.height, to.x + BOX.width / 2, to.y];
  const middle = (y1 + y2) / 2;
  return svg('path', { class: 'edge', d: `M${x1} ${y1} C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}` });
}

/** @param {Step} step @param {number} number @param {{ x: number, y: number }} position */
function drawBox({ txn, tool, state, undo }, number, { x, y }) {
  const undoText =
    undo.state === 'none'
      ? undo.tool === null
        ? `undo: ${words(undo.kind ?? 'none')}`
        : `undo with ${undo.tool}`
      : `undo ${words(undo.state)}${undo.tool === null ? '' : `: ${undo.tool}`}`;
  const tone = undo.state === 'none' || undo.state === 'skipped' ? 'plain' : toneOf(undo.state);
  return svg(
    'a',
    { href: `#/calls/${txn}`, class: 'step', 'data-key': txn },
    svg('title', {}, `${number}. ${tool}: ${words(state)}; ${undoText}`),
    svg('rect', { x, y, width: BOX.width, height: BOX.height, rx: 5 }),
    svg('rect', { class: `edge-mark ${toneOf(state)}`, x, y, width: 4, height: BOX.height, rx: 2 }),
    svg('text', { x: x + 14, y: y + 19, class: 'name' }, `${number}  ${cut(tool, 28)}`),
    svg(
      'text',
      { x: x + BOX.width - 8, y: y + 19, class: `state ${toneOf(state)}`, 'text-anchor': 'end' },
      undo.state === 'done' ? 'undone' : '',
    ),
    svg('text', { x: x + 14, y: y + 37, class: `undo ${tone}` }, cut(`${words(state)} · ${undoText}`, 46)),
  );
}
