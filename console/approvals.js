// Calls that wait for people. What is shown is what is decided about, and what runs.

import { at, get, Problem, post, withQuery } from './api.js';
import { ask, REASON } from './ask.js';
import { h } from './dom.js';
import { plural } from './format.js';
import { badge, button, callLink, code, empty, facts, json, sagaLink, since } from './parts.js';

/** @import { Approval, Context, View } from './types.d.ts' */

/** Of those that are shown and were not met among what waits, this many are looked after at once. */
const MOST_LOOKED_AFTER = 12;

/** The one that was asked for, waiting or decided. @param {string} txn @returns {View<Approval>} */
export function approvalView(txn) {
  return {
    title: 'Approval',
    hears: ({ name, data }) => name === 'policies' || data['txn'] === txn,
    load: () => get(at`/admin/approvals/${txn}`),
    draw: (approval, context) => [
      h('p', {}, h('a', { href: '#/approvals' }, 'All that wait')),
      h('div', { class: 'cards' }, card(approval, context)),
    ],
  };
}

/** @typedef {{ approvals: Approval[], more: boolean }} Waiting */

/** @returns {View<Waiting>} */
export function approvalsView() {
  /** Once shown it stays in its place, also when it is decided: nothing moves under a hand that is about to press. @type {Map<string, Approval>} */
  const shown = new Map();
  /** When it was last known how each stands. @type {Map<string, number>} */
  const known = new Map();
  let pages = 1;
  const keep = (/** @type {Approval} */ approval) => {
    shown.set(approval.txn, approval);
    known.set(approval.txn, performance.now());
  };
  return {
    title: 'Approvals',
    hears: ({ name, data }) => name === 'approval' || name === 'policies' || shown.has(String(data['txn'])),
    async load() {
      const { items, more } = await pendingNow(pages);
      // The longest-waiting first, so that new ones come below what is being read.
      for (const approval of items.reverse()) keep(approval);
      const met = new Set(items.map(({ txn }) => txn));
      // Decided, or waiting beyond what was read: each is asked for, since the list does not tell which.
      const unmet = [...shown.values()]
        .filter(({ txn, state }) => state === 'pending' && !met.has(txn))
        .sort((a, b) => (known.get(a.txn) ?? 0) - (known.get(b.txn) ?? 0))
        .slice(0, MOST_LOOKED_AFTER);
      for (const approval of await Promise.all(unmet.map(again))) keep(approval);
      return { approvals: [...shown.values()], more };
    },
    draw({ approvals, more }, context) {
      const readMore = async () => {
        pages += 1;
        await context.refresh();
      };
      if (approvals.length === 0) return nothingWaits();
      return [
        h(
          'div',
          { class: 'cards' },
          approvals.map((approval) => card(approval, context)),
        ),
        more &&
          h(
            'p',
            {},
            `${plural(approvals.filter(({ state }) => state === 'pending').length, 'call')} of more that wait. `,
            button('Show longer-waiting ones', () => void readMore()),
          ),
      ];
    },
  };
}

/** How one stands that was shown before. @param {Approval} approval @returns {Promise<Approval>} */
async function again(approval) {
  try {
    return await get(at`/admin/approvals/${approval.txn}`);
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return { ...approval, state: 'gone' };
    throw error;
  }
}

function nothingWaits() {
  return empty(
    'Nobody waits for a decision.',
    'A call is held when its rule says ',
    code('approve'),
    ' or ',
    code('delay'),
    ', or when its tool has no way to tell a repeat.',
  );
}

/** The newest that wait, as many pages as were asked for, and whether there are more. @param {number} pages @returns {Promise<{ items: Approval[], more: boolean }>} */
async function pendingNow(pages) {
  /** @type {Approval[]} */
  const items = [];
  /** @type {string | undefined} */
  let cursor;
  for (let read = 0; read < pages; read++) {
    const page = await get(withQuery('/admin/approvals', { state: 'pending', cursor }));
    items.push(...page.items);
    cursor = page.cursor ?? undefined;
    if (cursor === undefined) break;
  }
  return { items, more: cursor !== undefined };
}

/** @param {Approval} approval @param {Context} context */
function card(approval, context) {
  const { txn, agent, tool, state, args, target, undo, digest } = approval;
  return h(
    'article',
    { 'data-key': txn, class: `card ${state === 'pending' ? 'wait' : 'over'}`, 'aria-label': `${tool} of ${agent}` },
    h(
      'header',
      {},
      badge(
        state === 'pending' && approval.hold === 'delay' ? 'delayed' : state,
        state === 'pending' ? 'wait' : undefined,
      ),
      code(tool),
      h('span', { class: 'dim' }, 'asked by'),
      h('strong', {}, agent),
      callLink(txn),
    ),
    h(
      'div',
      { class: 'columns' },
      h(
        'div',
        {},
        target !== null && h('p', { class: 'target' }, h('b', {}, target.method), ' ', h('span', {}, target.url)),
        json(args, 'Arguments'),
        approval.facts !== undefined && json(approval.facts, 'What the rules were told'),
      ),
      facts([
        ['Asked', since(approval.requestedAt)],
        [
          approval.leavesAt === null ? 'Expires' : 'Leaves by itself',
          state === 'pending' ? since(approval.leavesAt ?? approval.expiresAt) : null,
        ],
        ['Decided', approval.decidedAt === null ? null : since(approval.decidedAt)],
        ['Undo', undo === null ? null : [undo.kind, undo.tool === null ? null : [' with ', code(undo.tool)]]],
        ['Rule', approval.rule],
        ['Saga', approval.saga === null ? null : sagaLink(approval.saga)],
        [
          'Needs',
          `${plural(approval.quorum, 'vote')}${approval.groups.length > 0 ? ` of ${approval.groups.join(', ')}` : ''}`,
        ],
        [
          'Voters',
          approval.voters.length === 0
            ? null
            : approval.voters.map(({ voter, verdict }) => `${voter}: ${verdict}`).join(', '),
        ],
        ['Digest', digest === null ? null : h('code', { class: 'whole' }, digest)],
      ]),
    ),
    approval.votes.length > 0 && h('ul', { class: 'votes' }, approval.votes.map(vote)),
    state === 'pending' && decide(approval, context),
  );
}

/** @param {Approval['votes'][number]} vote */
function vote({ person, verdict, reason, at: when }) {
  return h(
    'li',
    { 'data-key': person },
    badge(verdict === 'approve' ? 'approved' : 'rejected'),
    h('strong', {}, person),
    h('span', {}, reason),
    since(when),
  );
}

/** @param {Approval} approval @param {Context} context */
function decide(approval, context) {
  const { digest, txn, hold } = approval;
  const mayApprove = context.may('approver');
  const mayReject = mayApprove || (hold === 'delay' && context.may('operator'));
  if (digest === null) return h('p', { class: 'dim' }, 'It cannot be decided: its tool is no longer in the policies.');
  return h(
    'div',
    { class: 'actions', role: 'group', 'aria-label': `Decide ${txn}` },
    button('Reject…', () => cast(approval, 'reject', context), {
      tone: 'danger',
      disabled: !mayReject,
      why: 'Deciding needs the role approver.',
    }),
    button('Approve…', () => cast(approval, 'approve', context), {
      tone: 'main',
      disabled: !mayApprove,
      why: 'Deciding needs the role approver.',
    }),
  );
}

/** @param {Approval} approval @param {'approve' | 'reject'} verdict @param {Context} context */
function cast({ txn, tool, agent, args, digest }, verdict, context) {
  const isYes = verdict === 'approve';
  ask({
    title: isYes ? 'Approve this call?' : 'Reject this call?',
    body: [
      h(
        'p',
        {},
        code(tool),
        ' of ',
        h('strong', {}, agent),
        isYes ? ' runs with exactly these arguments, or not at all:' : ' ends unsent. Its agent is told so.',
      ),
      isYes && json(args, 'Arguments'),
      h('p', { class: 'dim' }, 'Digest ', h('code', { class: 'whole' }, digest ?? '')),
    ],
    fields: [REASON],
    confirm: isYes ? 'Approve' : 'Reject',
    tone: isYes ? 'main' : 'danger',
    run: async ({ reason }) => {
      await post(at`/admin/approvals/${txn}/${verdict}`, { reason, digest });
      context.say(isYes ? 'Your approval is recorded.' : 'Rejected.');
      await context.refresh();
    },
  });
}
