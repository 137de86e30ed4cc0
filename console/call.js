// One call: what was asked, how it went, and what a person may still do about it.

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
    hears: ({ data }) => data['txn'] === txn || data['what'] === 'undo_claimed',
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
    standing(call, context),
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

/** What is wrong, or waited for, and the button that ends it. @param {Call} call @param {Context} context */
function standing(call, context) {
  if (call.state === 'in_doubt') {
    const detail = call.problem?.detail ?? 'It may or may not have happened.';
    const why = 'Resolving needs the role operator.';
    return h(
      'div',
      { class: 'notice doubt' },
      h('div', {}, h('strong', {}, 'It may or may not have happened'), h('p', {}, detail)),
      button('Resolve…', () => resolve(call, context), { tone: 'main', disabled: !context.may('operator'), why }),
    );
  }
  if (call.state === 'held' && call.hold !== undefined) {
    const what = call.hold.kind === 'delay' ? 'Leaves by itself' : 'Waits for people';
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
      label === 'Result' ? `None${call.state === 'succeeded' ? ': it answered without one' : ''}` : 'Not kept',
    );
  return json(value, label);
}

/** @param {Call} call */
function about(call) {
  return facts([
    ['Began', since(call.createdAt)],
    ['Took', call.settledAt === null ? null : duration(Date.parse(call.settledAt) - Date.parse(call.createdAt))],
    ['Attempts', String(call.attempts)],
    ['Repeat is harmless by', call.kind],
    [
      'Known by',
      call.evidence === null ? null : [words(call.evidence), call.resolvedBy === null ? null : ` (${call.resolvedBy})`],
    ],
    ['Outcome', call.outcome === null ? null : words(call.outcome)],
    ['Key', call.key === null ? null : code(call.key)],
    ['Rule', call.rule],
    ['Policies', code(call.policyVersion)],
    ['Saga', call.saga === null ? null : sagaLink(call.saga)],
    ['Run', call.run === null ? null : code(call.run)],
    ['Undoes', call.undoes === undefined ? null : callLink(call.undoes)],
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
  const { undo: how } = call;
  const canUndo = call.state === 'succeeded' && ['none', 'failed'].includes(how.state) && how.tool !== null;
  return [
    facts([
      ['State', undoBadge(how.state)],
      ['Kind', how.kind],
      ['With', how.tool === null ? null : code(how.tool)],
      ['Done by', how.txn === null ? null : callLink(how.txn)],
      ['Why', how.reason],
    ]),
    how.args !== undefined && how.args !== null && json(how.args, 'Arguments of the undo'),
    canUndo
      ? h(
          'p',
          {},
          button('Undo this call…', () => undoIt(call, context), {
            tone: 'danger',
            disabled: !context.may('operator'),
            why: 'Undoing needs the role operator.',
          }),
        )
      : how.tool === null &&
        h(
          'p',
          { class: 'dim' },
          how.kind === 'irreversible'
            ? 'Its tool says that nothing undoes it.'
            : 'Its tool names nothing that undoes it.',
        ),
  ];
}

/** @param {Call} call @param {Context} context */
function resolve({ txn, tool }, context) {
  ask({
    title: 'Did it happen?',
    body: [
      h('p', {}, 'Look at the service behind ', code(tool), ' first. The answer is final, and what the agent is told.'),
    ],
    fields: [
      {
        name: 'verdict',
        label: 'Verdict',
        kind: 'choice',
        options: [
          ['applied', 'It happened'],
          ['not_applied', 'It did not happen'],
          ['retry', 'It did not happen: send it again'],
        ],
      },
      {
        name: 'result',
        label: 'Result',
        kind: 'area',
        optional: true,
        hint: 'JSON. If it happened: what the agent is to be told that it answered.',
      },
      REASON,
    ],
    confirm: 'Resolve',
    run: async ({ verdict, result, reason }) => {
      const path = at`/admin/calls/${txn}/resolve`;
      const text = (result ?? '').trim();
      if (text === '' || verdict !== 'applied') await post(path, { verdict, reason });
      else await postTyped(path, { verdict, reason }, { name: 'result', text, what: 'The result is' });
      context.say('Resolved.');
      await context.refresh();
    },
  });
}

/** @param {Call} call @param {Context} context */
function undoIt({ txn, undo: how }, context) {
  ask({
    title: 'Undo this call?',
    body: [h('p', {}, code(how.tool ?? ''), ' is called with:'), json(how.args, 'Arguments of the undo')],
    fields: [REASON],
    confirm: 'Undo it',
    tone: 'danger',
    run: async ({ reason }) => {
      await post(at`/admin/calls/${txn}/undo?wait=5`, { reason });
      context.say('It is being undone.');
      await context.refresh();
    },
  });
}
