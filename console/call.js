// One call: its request, its timeline, and what a person can still do about it.

import { at, get, post, postTyped } from './api.js';
import { ask, REASON } from './ask.js';
import { h } from './dom.js';
import { duration, words } from './format.js';
import { badge, button, callLink, code, facts, json, sagaLink, section, since, undoBadge } from './parts.js';
import { timeline } from './timeline.js';

/** @import { Call, Context, View } from './types.d.ts' */

/** @param {string} txn @returns {View<Call>} */
export function callView(txn) {
  return {
    title: 'Call',
    load: () => get(at`/admin/calls/${txn}`),
    draw,
    isAffectedBy: ({ data }) => data['txn'] === txn || data['what'] === 'undo_claimed',
  };
}

/** @param {Call} call @param {Context} context */
function draw(call, context) {
  return [
    h(
      'div',
      { class: 'subject' },
      badge(call.state),
      code(call.tool),
      h('span', { class: 'dim' }, 'of'),
      call.agent,
      h('code', { class: 'whole' }, call.txn),
    ),
    call.contradiction !== null &&
      h('div', { class: 'problem' }, h('strong', {}, 'Contradiction'), h('p', {}, call.contradiction)),
    notice(call, context),
    h(
      'div',
      { class: 'columns' },
      section('Timeline', null, timeline(call)),
      h(
        'div',
        {},
        section('Arguments', null, payload(call, call.args, 'Arguments')),
        section('Result', null, payload(call, call.result, 'Result')),
      ),
    ),
    h('div', { class: 'columns' }, section('About', null, about(call)), section('Undo', null, undo(call, context))),
  ];
}

/** What the call waits for or what is wrong, with the button for it. @param {Call} call @param {Context} context */
function notice(call, context) {
  if (call.state === 'in_doubt') {
    const detail = call.problem?.detail ?? 'The call may or may not have happened.';
    const why = 'You need the role operator.';
    return h(
      'div',
      { class: 'notice doubt' },
      h('div', {}, h('strong', {}, 'The call may or may not have happened'), h('p', {}, detail)),
      button('Resolve…', () => resolve(call, context), { tone: 'main', disabled: !context.hasRole('operator'), why }),
    );
  }
  if (call.state === 'held' && call.hold !== undefined) {
    const what = call.hold.kind === 'delay' ? 'The call is delayed' : 'The call waits for approval';
    return h(
      'div',
      { class: 'notice wait' },
      h('div', {}, h('strong', {}, what), h('p', {}, 'Until ', since(call.hold.until))),
      h('a', { class: 'button', href: `#/approvals/${call.txn}` }, 'Decide'),
    );
  }
  if (call.problem !== null)
    return h(
      'div',
      { class: 'notice bad' },
      h('div', {}, h('strong', {}, words(call.problem.code)), h('p', {}, call.problem.detail)),
    );
  return null;
}

/** @param {Call} call @param {Call['args']} value @param {string} label */
function payload(call, value, label) {
  if (call.erasedAt !== null) return h('p', { class: 'dim' }, 'Erased ', since(call.erasedAt));
  if (value === null)
    return h(
      'p',
      { class: 'dim' },
      label === 'Result'
        ? `None${call.state === 'succeeded' ? ': the service answered without a body' : ''}`
        : 'Not stored',
    );
  return json(value, label);
}

/** @param {Call} call */
function about(call) {
  return facts([
    ['Started', since(call.createdAt)],
    ['Took', call.settledAt === null ? null : duration(Date.parse(call.settledAt) - Date.parse(call.createdAt))],
    ['Attempts', String(call.attempts)],
    ['Once by', call.kind],
    [
      'Evidence',
      call.evidence === null ? null : [words(call.evidence), call.resolvedBy === null ? null : ` (${call.resolvedBy})`],
    ],
    ['Outcome', call.outcome === null ? null : words(call.outcome)],
    ['Key', call.key === null ? null : code(call.key)],
    ['Rule', call.rule],
    ['Policy version', code(call.policyVersion)],
    ['Saga', call.saga === null ? null : sagaLink(call.saga)],
    ['Run', call.run === null ? null : code(call.run)],
    ['Compensates', call.undoes === undefined ? null : callLink(call.undoes)],
    [
      'Receipt',
      call.receipt === null
        ? null
        : h('a', { class: 'id', href: `#/log/${call.receipt.leaf}` }, `${call.receipt.leaf.slice(0, 16)}…`),
    ],
  ]);
}

/** @param {Call} call @param {Context} context */
function undo(call, context) {
  const { undo: plan } = call;
  const canUndo = call.state === 'succeeded' && ['none', 'failed'].includes(plan.state) && plan.tool !== null;
  return [
    facts([
      ['State', undoBadge(plan.state)],
      ['Kind', plan.kind],
      ['Tool', plan.tool === null ? null : code(plan.tool)],
      ['Compensation', plan.txn === null ? null : callLink(plan.txn)],
      ['Reason', plan.reason],
    ]),
    plan.args !== undefined && plan.args !== null && json(plan.args, 'Arguments of the undo'),
    canUndo
      ? h(
          'p',
          {},
          button('Undo this call…', () => confirmUndo(call, context), {
            tone: 'danger',
            disabled: !context.hasRole('operator'),
            why: 'You need the role operator.',
          }),
        )
      : plan.tool === null &&
        h(
          'p',
          { class: 'dim' },
          plan.kind === 'irreversible'
            ? 'The contract of the tool says that it cannot be undone.'
            : 'The contract of the tool names no undo.',
        ),
  ];
}

/** @param {Call} call @param {Context} context */
function resolve({ txn, tool }, context) {
  ask({
    title: 'Did it happen?',
    body: [
      h(
        'p',
        {},
        'Look at the service behind ',
        code(tool),
        ' first. Your verdict is final, and the agent gets it as the answer.',
      ),
    ],
    fields: [
      {
        name: 'verdict',
        label: 'Verdict',
        kind: 'choice',
        options: [
          ['applied', 'The call happened'],
          ['not_applied', 'The call did not happen'],
          ['retry', 'The call did not happen: send it again'],
        ],
      },
      {
        name: 'result',
        label: 'Result',
        kind: 'area',
        optional: true,
        hint: 'JSON. If the call happened: the result that the agent gets.',
      },
      REASON,
    ],
    confirm: 'Resolve',
    run: async ({ verdict, result, reason }) => {
      const path = at`/admin/calls/${txn}/resolve`;
      const text = (result ?? '').trim();
      if (text === '' || verdict !== 'applied') await post(path, { verdict, reason });
      else await postTyped(path, { verdict, reason }, { name: 'result', text, what: 'The result is' });
      context.notify('The call is resolved.');
      await context.refresh();
    },
  });
}

/** @param {Call} call @param {Context} context */
function confirmUndo({ txn, undo: plan }, context) {
  ask({
    title: 'Undo this call?',
    body: [h('p', {}, code(plan.tool ?? ''), ' runs with these arguments:'), json(plan.args, 'Arguments of the undo')],
    fields: [REASON],
    confirm: 'Undo',
    tone: 'danger',
    run: async ({ reason }) => {
      await post(at`/admin/calls/${txn}/undo?wait=5`, { reason });
      context.notify('The undo has started.');
      await context.refresh();
    },
  });
}
