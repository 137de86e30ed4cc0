// Held calls. A decision carries the digest of what is shown, and only that runs.

import { at, get, Problem, post, withQuery } from './api.js';
import { ask, REASON } from './ask.js';
import { h } from './dom.js';
import { plural } from './format.js';
import { badge, button, callLink, code, empty, facts, json, sagaLink, since } from './parts.js';

/** @import { Approval, Context, View } from './types.d.ts' */

/** How many shown approvals that left the pending list are read again at once. */
const MAX_REREAD = 12;

/** One approval, pending or decided. @param {string} txn @returns {View<Approval>} */
export function approvalView(txn) {
  return {
    title: 'Approval',
    isAffectedBy: ({ name, data }) => name === 'policies' || data['txn'] === txn,
    load: () => get(at`/admin/approvals/${txn}`),
    draw: (approval, context) => [
      h('p', {}, h('a', { href: '#/approvals' }, 'All held calls')),
      h('div', { class: 'cards' }, card(approval, context)),
    ],
  };
}

/** @typedef {{ approvals: Approval[], more: boolean }} Approvals */

/** @returns {View<Approvals>} */
export function approvalsView() {
  /** Shown approvals keep their place even when decided, so that no button moves just before a click. @type {Map<string, Approval>} */
  const shown = new Map();
  /** When each approval was last read. @type {Map<string, number>} */
  const readAt = new Map();
  let pages = 1;
  const keep = (/** @type {Approval} */ approval) => {
    shown.set(approval.txn, approval);
    readAt.set(approval.txn, performance.now());
  };
  return {
    title: 'Approvals',
    isAffectedBy: ({ name, data }) => name === 'approval' || name === 'policies' || shown.has(String(data['txn'])),
    async load() {
      const { items, more } = await loadPending(pages);
      // The oldest come first, so that new ones appear below what the person is reading.
      for (const approval of items.reverse()) keep(approval);
      const pending = new Set(items.map(({ txn }) => txn));
      // The others are decided, or pending on a page that was not read. Only a request for each one can tell.
      const others = [...shown.values()]
        .filter(({ txn, state }) => state === 'pending' && !pending.has(txn))
        .sort((a, b) => (readAt.get(a.txn) ?? 0) - (readAt.get(b.txn) ?? 0))
        .slice(0, MAX_REREAD);
      for (const approval of await Promise.all(others.map(reread))) keep(approval);
      return { approvals: [...shown.values()], more };
    },
    draw({ approvals, more }, context) {
      const readMore = async () => {
        pages += 1;
        await context.refresh();
      };
      if (approvals.length === 0) return nothingHeld();
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
            `${plural(approvals.filter(({ state }) => state === 'pending').length, 'held call')} shown; there are older ones. `,
            button('Show older ones', () => void readMore()),
          ),
      ];
    },
  };
}

/** Reads a shown approval again. @param {Approval} approval @returns {Promise<Approval>} */
async function reread(approval) {
  try {
    return await get(at`/admin/approvals/${approval.txn}`);
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return { ...approval, state: 'gone' };
    throw error;
  }
}

function nothingHeld() {
  return empty(
    'No call waits for a decision.',
    'A call is held if its rule has ',
    code('approve'),
    ' or ',
    code('delay'),
    ', or if its tool has ',
    code('once: { by: none }'),
    '.',
  );
}

/** Reads so many pages of pending approvals, newest first. @param {number} pages @returns {Promise<{ items: Approval[], more: boolean }>} */
async function loadPending(pages) {
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
      h('span', { class: 'dim' }, 'requested by'),
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
        approval.facts !== undefined && json(approval.facts, 'Facts that the rules used'),
      ),
      facts([
        ['Requested', since(approval.requestedAt)],
        [
          approval.leavesAt === null ? 'Expires' : 'Sent automatically',
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
  const mayApprove = context.hasRole('approver');
  const mayReject = mayApprove || (hold === 'delay' && context.hasRole('operator'));
  if (digest === null)
    return h('p', { class: 'dim' }, 'This call cannot be decided, because its tool is no longer in the policies.');
  return h(
    'div',
    { class: 'actions', role: 'group', 'aria-label': `Decide ${txn}` },
    button('Reject…', () => cast(approval, 'reject', context), {
      tone: 'danger',
      disabled: !mayReject,
      why: 'You need the role approver.',
    }),
    button('Approve…', () => cast(approval, 'approve', context), {
      tone: 'main',
      disabled: !mayApprove,
      why: 'You need the role approver.',
    }),
  );
}

/** @param {Approval} approval @param {'approve' | 'reject'} verdict @param {Context} context */
function cast({ txn, tool, agent, args, digest }, verdict, context) {
  const isApproval = verdict === 'approve';
  ask({
    title: isApproval ? 'Approve this call?' : 'Reject this call?',
    body: [
      h(
        'p',
        {},
        code(tool),
        ' of ',
        h('strong', {}, agent),
        isApproval
          ? ' runs with exactly these arguments, or not at all:'
          : ' will not be sent. The agent gets the rejection.',
      ),
      isApproval && json(args, 'Arguments'),
      h('p', { class: 'dim' }, 'Digest ', h('code', { class: 'whole' }, digest ?? '')),
    ],
    fields: [REASON],
    confirm: isApproval ? 'Approve' : 'Reject',
    tone: isApproval ? 'main' : 'danger',
    run: async ({ reason }) => {
      await post(at`/admin/approvals/${txn}/${verdict}`, { reason, digest });
      context.notify(isApproval ? 'Your approval is recorded.' : 'The call is rejected.');
      await context.refresh();
    },
  });
}
