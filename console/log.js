// The audit log, and the proof that an entry is in it.

import { at, get, withQuery } from './api.js';
import { h } from './dom.js';
import { clock, number, short, words } from './format.js';
import { badge, callLink, code, empty, facts, json, row, sagaLink, section, since, table } from './parts.js';

/** @import { Child, LogEntry, Stats, View } from './types.d.ts' */

const PAGE = 50;
const HEADS = ['index', 'time', 'event', 'about', 'by', 'leaf'];

/** @typedef {{ stats: Stats, note: string, items: LogEntry[], from: number }} Log */

/** @param {Record<string, string | undefined>} query @returns {View<Log>} */
export function logView({ from }) {
  const isAtEnd = from === undefined || !/^\d{1,15}$/.test(from);
  return {
    title: 'Log',
    load: async () => {
      /** @type {[Stats, string]} */
      const [stats, note] = await Promise.all([get('/admin/stats'), get('/admin/audit/checkpoint').catch(() => '')]);
      const first = isAtEnd ? Math.max(0, stats.log.size - PAGE) : Number(from);
      const { items } = await get(withQuery('/admin/audit/entries', { from: String(first), to: String(first + PAGE) }));
      return { stats, note, items: items.reverse(), from: first };
    },
    isAffectedBy: ({ name }) => isAtEnd && name === 'checkpoint',
    draw,
  };
}

/** @param {Log} log */
function draw({ stats: { log }, note, items, from }) {
  const older = Math.max(0, from - PAGE);
  return [
    log.doubt !== null &&
      h(
        'div',
        { class: 'notice bad' },
        h(
          'div',
          {},
          h('strong', {}, 'The audit log is in doubt'),
          h('p', {}, log.doubt),
          h(
            'p',
            {},
            'The gateway sends nothing until a person accepts the log. Run ',
            code('oncegate audit verify'),
            ', then ',
            code('oncegate audit accept'),
            '.',
          ),
        ),
      ),
    section(
      'Checkpoint',
      h('span', { class: 'dim' }, 'signed ', since(log.sealedAt)),
      note === ''
        ? empty('There is no checkpoint yet.', 'The gateway signs the first entry within a second.')
        : h('pre', { class: 'json', tabindex: 0, 'aria-label': 'Signed checkpoint' }, note),
    ),
    section(
      'Entries',
      h(
        'span',
        { class: 'pager' },
        h(
          'span',
          { class: 'dim' },
          items.length === 0 ? '' : `${number(from)}–${number(from + items.length - 1)} of ${number(log.size)}`,
        ),
        from > 0 && h('a', { href: `#/log?from=${older}` }, 'Older'),
        from + items.length < log.size && h('a', { href: `#/log?from=${from + PAGE}` }, 'Newer'),
        h('a', { href: '#/log' }, 'Newest'),
      ),
      items.length === 0
        ? empty('There are no entries here.', h('a', { href: '#/log' }, 'Show the newest'))
        : table(HEADS, items.map(entryRow), 'Entries of the audit log'),
    ),
  ];
}

/** @param {LogEntry} logged */
function entryRow({ index, leaf, entry }) {
  const text = (/** @type {string} */ name) =>
    entry[name] === undefined || entry[name] === null ? '' : String(entry[name]);
  /** @type {Child} */
  const about =
    text('txn') !== ''
      ? callLink(text('txn'))
      : text('saga') !== ''
        ? sagaLink(text('saga'))
        : text('scope') || text('upstream') || text('policyVersion');
  const link = h('a', { class: 'id', href: `#/log/${leaf}`, title: leaf }, short(leaf));
  return row(
    String(index),
    [
      number(index),
      h('time', { datetime: entry.at, title: entry.at }, clock(entry.at)),
      badge(entry.what, 'plain'),
      [text('tool') !== '' && [code(text('tool')), ' '], about],
      text('person') || text('agent'),
      link,
    ],
    HEADS,
  );
}

/** @param {string} leaf @returns {View<any>} */
export function proofView(leaf) {
  return {
    title: 'Proof',
    load: () => get(at`/admin/audit/proof?leaf=${leaf}`),
    draw: drawProof,
    isAffectedBy: () => false,
  };
}

/** @param {{ leaf: string, index: number, size: number, root: string, proof: string[], checkpoint: string, entry: LogEntry['entry'] }} proof */
function drawProof({ leaf, index, size, root, proof, checkpoint, entry }) {
  return [
    h(
      'p',
      {},
      `Entry ${number(index)} is in the signed log of ${number(size)} entries. The hashes below lead from the entry to the root in the checkpoint. `,
      code('oncegate audit verify'),
      ' checks the whole log offline.',
    ),
    h(
      'div',
      { class: 'columns' },
      section('Entry', badge(words(entry.what), 'plain'), json(entry, 'Entry')),
      section(
        'Proof',
        null,
        facts([
          ['Leaf', h('code', { class: 'whole' }, leaf)],
          ['Root', h('code', { class: 'whole' }, root)],
        ]),
        h(
          'ol',
          { class: 'hashes' },
          proof.map((hash) => h('li', {}, h('code', { class: 'whole' }, hash))),
        ),
        h('pre', { class: 'json', tabindex: 0, 'aria-label': 'Signed checkpoint' }, checkpoint),
      ),
    ),
    h('p', {}, h('a', { href: `#/log?from=${Math.max(0, index - 10)}` }, 'Show in the log')),
  ];
}
