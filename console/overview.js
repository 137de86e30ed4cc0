// What needs a person now, and the state of the gateway.

import { get } from './api.js';
import { outcomes, shares, throughput } from './chart.js';
import { h } from './dom.js';
import { cut, number, plural, short, words } from './format.js';
import { badge, callLink, code, empty, facts, row, sagaLink, section, since, table } from './parts.js';

/** @import { Approval, Call, Child, Context, Counted, GateEvent, SagaLine, Stats, View } from './types.d.ts' */

/** How many items of each kind are shown. */
const MAX_PER_KIND = 4;

/** @typedef {{ stats: Stats, approvals: Approval[], doubts: Call[], parked: SagaLine[] }} OverviewData */

/** Approvals carry all arguments, so they are read again only after an approval event, or after this time. */
const MAX_APPROVALS_AGE_MS = 15_000;

/** @returns {View<OverviewData>} */
export function overview() {
  /** @type {{ items: Approval[], count: number, at: number }} */
  let read = { items: [], count: 0, at: Number.NEGATIVE_INFINITY };
  const loadApprovals = async (/** @type {Stats} */ { approvals: { pending } }) => {
    const isFresh = pending.count === read.count && performance.now() - read.at < MAX_APPROVALS_AGE_MS;
    if (isFresh) return read.items;
    const at = performance.now();
    const items = pending.count === 0 ? [] : (await get('/admin/approvals?state=pending')).items;
    read = { items: items.slice(-MAX_PER_KIND).reverse(), count: pending.count, at };
    return read.items;
  };
  return {
    title: 'Overview',
    load: () => load(loadApprovals),
    draw,
    isAffectedBy: ({ name }) => {
      if (name === 'approval') read.at = Number.NEGATIVE_INFINITY;
      return true;
    },
  };
}

/** @param {(stats: Stats) => Promise<Approval[]>} loadApprovals @returns {Promise<OverviewData>} */
async function load(loadApprovals) {
  /** @type {Stats} */
  const stats = await get('/admin/stats');
  const loadIf = async (/** @type {boolean} */ exists, /** @type {string} */ path) =>
    exists ? (await get(path)).items : [];
  const [approvals, doubts, parked] = await Promise.all([
    loadApprovals(stats),
    // The count of open calls has a limit, and doubts may be beyond it. One item more than shown tells whether there are more.
    loadIf(stats.open.inDoubt > 0 || stats.open.more, `/admin/calls?state=in_doubt&limit=${MAX_PER_KIND + 1}`),
    loadIf(stats.sagas.parked.count > 0, `/admin/sagas?state=parked&limit=${MAX_PER_KIND}`),
  ]);
  return { stats, approvals, doubts, parked };
}

/** @param {OverviewData} data @param {Context} context */
function draw(data, { recentEvents }) {
  const { stats } = data;
  return [
    section(
      'Needs a person',
      null,
      h('div', { class: 'waits', tabindex: 0, role: 'group', 'aria-label': 'What needs a person' }, needs(data)),
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
      section('Recent events', h('a', { href: '#/log' }, 'Audit log'), latest(recentEvents)),
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

/** @param {OverviewData} data */
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
    stats.log.doubt !== null && need('log', 'bad', 'Audit log in doubt', stats.log.doubt, '#/log', 'Show'),
    stats.policies.refused.length > 0 &&
      need('policies', 'bad', 'Policies refused', cut(stats.policies.refused[0] ?? '', 160), '#/policies', 'Show'),
    ...stats.frozen.map(({ scope, by, reason, at }) =>
      need(
        `frozen ${scope}`,
        'bad',
        `Frozen: ${scope}`,
        [cut(reason, 120), ' · ', by, ' · ', since(at)],
        '#/controls',
        'Show',
      ),
    ),
    ...open.map(({ upstream, state, by }) =>
      need(
        `breaker ${upstream}`,
        'doubt',
        `Circuit breaker ${words(state)}: ${upstream}`,
        `by ${by}`,
        '#/controls',
        'Show',
      ),
    ),
    ...doubts
      .slice(0, MAX_PER_KIND)
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
    ...more(inDoubt, Math.min(doubts.length, MAX_PER_KIND), 'in doubt', '#/calls?state=in_doubt'),
    ...parked.map(({ saga, name, reason }) =>
      need(
        `saga ${saga}`,
        'bad',
        'Saga parked',
        [name ?? short(saga), ' · ', cut(reason ?? '', 120)],
        `#/sagas/${saga}`,
        'Show',
      ),
    ),
    ...more(stats.sagas.parked, parked.length, 'parked sagas', '#/sagas?state=parked'),
    ...approvals.map(({ txn, agent, tool, expiresAt, leavesAt }) =>
      need(
        `held ${txn}`,
        'wait',
        leavesAt === null ? 'Held for approval' : 'Delayed',
        [code(tool), ' of ', agent, leavesAt === null ? ' · expires ' : ' · sent ', since(leavesAt ?? expiresAt)],
        `#/approvals/${txn}`,
        'Decide',
      ),
    ),
    ...more(stats.approvals.pending, approvals.length, 'held for approval', '#/approvals'),
  ].filter((item) => item !== false);
  if (items.length > 0) return h('ul', { class: 'needs' }, items);
  return empty(
    'Nothing needs a person.',
    'Held calls, doubts, parked sagas, freezes, open circuit breakers and refused policies appear here.',
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
    table(['', 'all', 'succeeded', 'failed', 'held', 'in doubt'], rows, 'Calls by start time'),
    calls.since !== null &&
      h(
        'p',
        { class: 'dim' },
        `Only the newest ${number(calls.counted)} calls are counted, back to `,
        since(calls.since),
        '. A + means that there are more.',
      ),
  ];
}

/** @param {Stats} stats */
function tools({ calls }) {
  if (calls.tools.length === 0)
    return empty(
      'There were no calls in the last day.',
      'Agents call tools with ',
      code('POST /v1/tools/{tool}'),
      '; ',
      h('a', { href: '#/policies' }, 'Policies'),
      ' lists the tools.',
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
  return table(['tool', 'calls', 'states'], rows, 'Busiest tools of the last day');
}

/** @param {Stats} stats */
function gateway({ processes, log, policies, gateway: version, open, sagas }) {
  const items = processes.map(({ process, pid, startedAt, answers }) =>
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
      ['Policy version', h('a', { class: 'id', href: '#/policies' }, policies.version)],
      [
        'Audit log',
        [
          h('a', { href: '#/log' }, plural(log.size, 'entry', 'entries')),
          ', signed ',
          since(log.sealedAt),
          log.waiting > 0 && `, ${number(log.waiting)} not signed yet`,
        ],
      ],
      [
        'Sagas',
        `${number(sagas.open.count, sagas.open.more)} open, ${number(sagas.rollingBack.count, sagas.rollingBack.more)} rolling back`,
      ],
      [
        'Recovery',
        open.recoveryLagSeconds < 1 ? 'no call is overdue' : `${Math.round(open.recoveryLagSeconds)} s overdue`,
      ],
    ]),
    h('h3', {}, plural(processes.length, 'process', 'processes')),
    h('ul', { class: 'plain' }, items),
  ];
}

/** The events that are shown now. @type {readonly GateEvent[]} */
let shownEvents = [];

/**
 * The lines keep their positions and change their text, so that nothing moves. They do not change while the person points
 * at them.
 * @param {readonly GateEvent[]} recentEvents
 */
function latest(recentEvents) {
  if (document.querySelector('.latest:hover, .latest:focus-within') === null) shownEvents = recentEvents.slice(0, 11);
  const shown = shownEvents.map(({ name, data }) => {
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
    return h('div', { class: 'latest' }, empty('There are no events yet.', 'New events appear here.'));
  return h('ol', { class: 'latest' }, shown);
}

/** @param {string} state */
function toneOfEvent(state) {
  return { succeeded: 'good', failed: 'bad', rejected: 'bad', in_doubt: 'doubt', held: 'wait' }[state] ?? 'plain';
}
