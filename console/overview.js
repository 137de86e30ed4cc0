// What needs a person now, and how things stand.

import { get } from './api.js';
import { outcomes, shares, throughput } from './chart.js';
import { h } from './dom.js';
import { cut, number, plural, short, words } from './format.js';
import { badge, callLink, code, empty, facts, row, sagaLink, section, since, table } from './parts.js';

/** @import { Approval, Call, Child, Context, Counted, GateEvent, SagaLine, Stats, View } from './types.d.ts' */

/** Of each kind of thing that waits, this many are shown here. */
const FEW = 4;

/** @typedef {{ stats: Stats, approvals: Approval[], doubts: Call[], parked: SagaLine[] }} Standing */

/** Approvals carry whole arguments: they are read anew when something happened to one, and otherwise this often. */
const READ_AGAIN_MS = 15_000;

/** @returns {View<Standing>} */
export function overview() {
  /** @type {{ items: Approval[], count: number, at: number }} */
  let read = { items: [], count: 0, at: Number.NEGATIVE_INFINITY };
  const approvalsNow = async (/** @type {Stats} */ { approvals: { pending } }) => {
    const isFresh = pending.count === read.count && performance.now() - read.at < READ_AGAIN_MS;
    if (isFresh) return read.items;
    const at = performance.now();
    const items = pending.count === 0 ? [] : (await get('/admin/approvals?state=pending')).items;
    read = { items: items.slice(-FEW).reverse(), count: pending.count, at };
    return read.items;
  };
  return {
    title: 'Overview',
    load: () => load(approvalsNow),
    draw,
    hears: ({ name }) => {
      if (name === 'approval') read.at = Number.NEGATIVE_INFINITY;
      return true;
    },
  };
}

/** @param {(stats: Stats) => Promise<Approval[]>} approvalsNow @returns {Promise<Standing>} */
async function load(approvalsNow) {
  /** @type {Stats} */
  const stats = await get('/admin/stats');
  const some = async (/** @type {boolean} */ are, /** @type {string} */ path) => (are ? (await get(path)).items : []);
  const [approvals, doubts, parked] = await Promise.all([
    approvalsNow(stats),
    // Only so many open calls are counted, whatever their states: where there are others, doubts may be among those. One more
    // than is shown tells that there are more.
    some(stats.open.inDoubt > 0 || stats.open.more, `/admin/calls?state=in_doubt&limit=${FEW + 1}`),
    some(stats.sagas.parked.count > 0, `/admin/sagas?state=parked&limit=${FEW}`),
  ]);
  return { stats, approvals, doubts, parked };
}

/** @param {Standing} standing @param {Context} context */
function draw(standing, { lately }) {
  const { stats } = standing;
  return [
    section(
      'Needs a person',
      null,
      h('div', { class: 'waits', tabindex: 0, role: 'group', 'aria-label': 'What needs a person' }, needs(standing)),
    ),
    h(
      'div',
      { class: 'columns' },
      section(
        'Calls',
        h('span', { class: 'dim' }, `${number(stats.open.underWay, stats.open.more)} under way`),
        throughput(stats.calls.perMinute),
        windows(stats),
      ),
      section('Latest', h('a', { href: '#/log' }, 'Log'), latest(lately)),
    ),
    h('div', { class: 'columns' }, section('Tools', null, tools(stats)), section('Gateway', null, gateway(stats))),
  ];
}

/** @param {string} key @param {string} tone @param {Child} what @param {Child} about @param {string} href @param {string} verb */
function need(key, tone, what, about, href, verb) {
  return h(
    'li',
    { 'data-key': key, class: `need ${tone}` },
    h('span', { class: 'what' }, what),
    h('span', { class: 'about' }, about),
    h('a', { class: 'button', href }, verb),
  );
}

/** @param {Standing} standing */
function needs({ stats, approvals, doubts, parked }) {
  const open = stats.breakers.filter(({ state }) => state !== 'closed');
  const inDoubt = { count: Math.max(stats.open.inDoubt, doubts.length), more: stats.open.more };
  const more = (
    /** @type {Counted} */ { count, more: isCut },
    /** @type {number} */ shown,
    /** @type {string} */ what,
    /** @type {string} */ href,
  ) =>
    count > shown ? [need(`more ${what}`, 'plain', `${number(count - shown, isCut)} more`, what, href, 'All')] : [];
  const items = [
    stats.log.doubt !== null && need('log', 'bad', 'Log in doubt', stats.log.doubt, '#/log', 'Look'),
    stats.policies.refused.length > 0 &&
      need('policies', 'bad', 'Policies refused', cut(stats.policies.refused[0] ?? '', 160), '#/policies', 'Look'),
    ...stats.frozen.map(({ scope, by, reason, at }) =>
      need(
        `frozen ${scope}`,
        'bad',
        `Frozen: ${scope}`,
        [cut(reason, 120), ' · ', by, ' · ', since(at)],
        '#/switches',
        'Look',
      ),
    ),
    ...open.map(({ upstream, state, by }) =>
      need(`breaker ${upstream}`, 'doubt', `Breaker ${words(state)}: ${upstream}`, `by ${by}`, '#/switches', 'Look'),
    ),
    ...doubts
      .slice(0, FEW)
      .map((call) =>
        need(
          `doubt ${call.txn}`,
          'doubt',
          'In doubt',
          [code(call.tool), ' of ', call.agent, ' · ', since(call.createdAt)],
          `#/calls/${call.txn}`,
          'Resolve',
        ),
      ),
    ...more(inDoubt, Math.min(doubts.length, FEW), 'in doubt', '#/calls?state=in_doubt'),
    ...parked.map(({ saga, name, reason }) =>
      need(
        `saga ${saga}`,
        'bad',
        'Saga parked',
        [name ?? short(saga), ' · ', cut(reason ?? '', 120)],
        `#/sagas/${saga}`,
        'Look',
      ),
    ),
    ...more(stats.sagas.parked, parked.length, 'parked sagas', '#/sagas?state=parked'),
    ...approvals.map(({ txn, agent, tool, expiresAt, leavesAt }) =>
      need(
        `held ${txn}`,
        'wait',
        leavesAt === null ? 'Held for approval' : 'Leaves by itself',
        [code(tool), ' of ', agent, leavesAt === null ? ' · expires ' : ' · ', since(leavesAt ?? expiresAt)],
        `#/approvals/${txn}`,
        'Decide',
      ),
    ),
    ...more(stats.approvals.pending, approvals.length, 'held for approval', '#/approvals'),
  ].filter((item) => item !== false);
  if (items.length > 0) return h('ul', { class: 'needs' }, items);
  return empty(
    'Nothing waits for a person.',
    'Held calls, doubts, parked sagas, open breakers and refused policies appear here as they come up.',
  );
}

/** @param {Stats} stats */
function windows({ calls }) {
  const spans = /** @type {const} */ (['minute', 'hour', 'day']);
  const rows = spans.map((span) => {
    const { count, more, states } = calls[span];
    return row(span, [
      `last ${span}`,
      number(count, more),
      ...outcomes(states)
        .slice(0, -1)
        .map(({ count: some }) => (some === 0 ? h('span', { class: 'dim' }, '0') : number(some))),
    ]);
  });
  return [
    table(['', 'all', 'succeeded', 'failed', 'held', 'in doubt'], rows, 'Calls by when they began'),
    calls.since !== null &&
      h(
        'p',
        { class: 'dim' },
        `The newest ${number(calls.counted)} calls are counted, back to `,
        since(calls.since),
        '; what says + has more.',
      ),
  ];
}

/** @param {Stats} stats */
function tools({ calls }) {
  if (calls.tools.length === 0)
    return empty(
      'No call in the last day.',
      'Give an agent its key and let it call ',
      code('POST /v1/tools/{tool}'),
      '; ',
      h('a', { href: '#/policies' }, 'Policies'),
      ' shows which tools there are.',
    );
  const rows = calls.tools
    .slice(0, 10)
    .map(({ tool, count, states }) =>
      row(tool, [
        h('a', { href: `#/calls?tool=${encodeURIComponent(tool)}` }, code(tool)),
        number(count),
        shares(states, tool),
      ]),
    );
  return table(['tool', 'calls', 'how they ended'], rows, 'Busiest tools of the last day');
}

/** @param {Stats} stats */
function gateway({ processes, log, policies, gateway: version, open, sagas }) {
  const others = processes.map(({ process, pid, startedAt, answers }) =>
    h(
      'li',
      { 'data-key': process },
      code(short(process)),
      ` pid ${pid}, up since `,
      since(startedAt),
      answers && h('span', { class: 'dim' }, ' (this one)'),
    ),
  );
  return [
    facts([
      ['Version', version],
      ['Policies', h('a', { class: 'id', href: '#/policies' }, policies.version)],
      [
        'Log',
        [
          h('a', { href: '#/log' }, plural(log.size, 'entry', 'entries')),
          ', signed ',
          since(log.sealedAt),
          log.waiting > 0 && `, ${number(log.waiting)} waiting`,
        ],
      ],
      [
        'Sagas',
        `${number(sagas.open.count, sagas.open.more)} open, ${number(sagas.rollingBack.count, sagas.rollingBack.more)} rolling back`,
      ],
      ['Recovery', open.recoveryLagSeconds < 1 ? 'nothing overdue' : `${Math.round(open.recoveryLagSeconds)} s behind`],
    ]),
    h('h3', {}, plural(processes.length, 'process', 'processes')),
    h('ul', { class: 'plain' }, others),
  ];
}

/** What is shown of it now. @type {readonly GateEvent[]} */
let read = [];

/**
 * Lines stay in their places and change what they say, so that nothing moves when something happens; and not while somebody
 * points at them.
 * @param {readonly GateEvent[]} lately
 */
function latest(lately) {
  if (document.querySelector('.latest:hover, .latest:focus-within') === null) read = lately.slice(0, 11);
  const shown = read.map(({ name, data }) => {
    const text = (/** @type {string} */ member) => (data[member] === undefined ? '' : String(data[member]));
    const subject =
      text('txn') !== ''
        ? callLink(text('txn'))
        : text('saga') !== ''
          ? sagaLink(text('saga'))
          : cut(text('scope') || text('upstream') || text('policyVersion'), 24);
    return h(
      'li',
      {},
      since(text('at') || new Date().toISOString()),
      badge(cut((text('what') || name).replace(/^call_/, ''), 18), toneOfEvent(text('state'))),
      h('span', { class: 'cut' }, text('tool') === '' ? text('person') : code(text('tool'))),
      subject,
    );
  });
  if (shown.length === 0)
    return h('div', { class: 'latest' }, empty('Quiet so far.', 'What happens from now on appears here.'));
  return h('ol', { class: 'latest' }, shown);
}

/** @param {string} state */
function toneOfEvent(state) {
  return { succeeded: 'good', failed: 'bad', rejected: 'bad', in_doubt: 'doubt', held: 'wait' }[state] ?? 'plain';
}
