// The list of sagas.

import { withQuery } from './api.js';
import { h } from './dom.js';
import { cut, plural, words } from './format.js';
import { Pages } from './pages.js';
import { badge, button, code, empty, row, sagaLink, since, table } from './parts.js';

/** @import { SagaLine, View } from './types.d.ts' */

const STATES = ['open', 'rolling_back', 'parked', 'committed', 'rolled_back', 'closed'];
const HEADS = ['started', 'state', 'name', 'agent', 'steps', 'saga', 'reason'];

/** @param {Record<string, string | undefined>} filter @returns {View<{ items: (SagaLine & { steps: number })[], cursor: string | null }>} */
export function sagasView(filter) {
  /** @type {Pages<SagaLine & { steps: number }>} */
  const pages = new Pages((page) =>
    withQuery('/admin/sagas', { state: filter['state'], agent: filter['agent'], ...page }),
  );
  return {
    title: 'Sagas',
    load: () => pages.load(),
    isAffectedBy: ({ name, data }) => name === 'saga' || 'saga' in data,
    draw({ items, cursor }, context) {
      const links = ['', ...STATES].map((state) =>
        h(
          'a',
          {
            href: withQuery('#/sagas', { state }),
            'aria-current': state === (filter['state'] ?? '') ? 'true' : undefined,
          },
          state === '' ? 'all' : words(state),
        ),
      );
      const more = () => {
        pages.more();
        void context.refresh();
      };
      return [
        h('div', { class: 'tabs', role: 'group', 'aria-label': 'State' }, links),
        items.length === 0 ? emptyList(filter) : table(HEADS, items.map(sagaRow), 'Sagas'),
        cursor !== null && h('p', {}, button('Older sagas', more)),
      ];
    },
  };
}

/** @param {SagaLine & { steps: number }} line */
function sagaRow({ saga, name, state, reason, createdAt, agent, steps }) {
  return row(
    saga,
    [
      since(createdAt),
      badge(state),
      cut(name ?? '', 60),
      agent,
      plural(steps, 'step'),
      sagaLink(saga),
      h('span', { class: 'dim' }, cut(reason ?? '', 80)),
    ],
    HEADS,
  );
}

/** @param {Record<string, string | undefined>} filter */
function emptyList(filter) {
  return filter['state']
    ? empty(`No saga is in the state ${words(filter['state'])}.`, h('a', { href: '#/sagas' }, 'Show all sagas'))
    : empty(
        'There are no sagas yet.',
        'An agent opens a saga with ',
        code('POST /v1/sagas'),
        ' and sends its id in the header ',
        code('Oncegate-Saga'),
        ' of each call.',
      );
}
