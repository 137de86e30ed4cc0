// Calls that wait for people. What is shown is what is decided about, and what runs.

import { at, get, Problem, post, withQuery } from './api.js';
import { ask, REASON } from './ask.js';
import { h } from './dom.js';
import { plural } from './format.js';
import { badge, button, callLink, code, empty, facts, json, problemBox, sagaLink, since } from './parts.js';

/** @import { Approval, Context, View } from './types.d.ts' */

const MOST_SHOWN = 200;

/** @param {string | undefined} only the one that was asked for @returns {View<Approval[]>} */
export function approvalsView(only) {
  /** Once shown it stays in its place, also when it is decided: nothing moves under a hand that is about to press. @type {Map<string, Approval>} */
  const shown = new Map();
  const wanted = (/** @type {Approval} */ { txn, state }) => (only === undefined ? state === 'pending' : txn === only);
  return {
    title: 'Approvals',
    hears: ({ name, data }) => name === 'approval' || name === 'policies' || shown.has(String(data['txn'])),
    async load() {
      const pending = await pendingNow();
      const waiting = new Set(pending.map(({ txn }) => txn));
      const isMissing = only === undefined ? [...shown.keys()].some((txn) => !waiting.has(txn)) : !waiting.has(only);
      /** @type {Approval[]} */
      const newest = isMissing ? (await get('/admin/approvals')).items : [];
      // The longest-waiting first, so that new ones come below what is being read.
      for (const approval of [...newest, ...pending].reverse())
        if (wanted(approval) || shown.has(approval.txn)) shown.set(approval.txn, approval);
      // Decided so long ago that it is not among the newest: its call tells the rest.
      for (const [txn, approval] of shown)
        if (approval.state === 'pending' && !waiting.has(txn)) shown.set(txn, { ...approval, state: 'decided' });
      return [...shown.values()];
    },
    draw(approvals, context) {
      if (approvals.length === 0 && only !== undefined)
        return problemBox(
          new Problem({
            title: 'Nothing waits here',
            detail: `No call ${only} waits for people, or waited lately.`,
            code: 'not_found',
          }),
        );
      if (approvals.length === 0)
        return empty(
          'Nobody waits for a decision.',
          'A call is held when its rule says ',
          code('approve'),
          ' or ',
          code('delay'),
          ', or when its tool has no way to tell a repeat.',
        );
      return [
        only !== undefined && h('p', {}, h('a', { href: '#/approvals' }, 'All that wait')),
        h(
          'div',
          { class: 'cards' },
          approvals.map((approval) => card(approval, context)),
        ),
      ];
    },
  };
}

/** All that wait, or the newest of very many. @returns {Promise<Approval[]>} */
async function pendingNow() {
  /** @type {Approval[]} */
  const found = [];
  /** @type {string | undefined} */
  let cursor;
  do {
    const page = await get(withQuery('/admin/approvals', { state: 'pending', cursor }));
    found.push(...page.items);
    cursor = page.cursor ?? undefined;
  } while (cursor !== undefined && found.length < MOST_SHOWN);
  return found;
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
