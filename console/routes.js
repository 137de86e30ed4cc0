// The views and their addresses (the hash of the URL), and the links of the navigation.

import { approvalsView, approvalView } from './approvals.js';
import { callView } from './call.js';
import { callsView } from './calls.js';
import { controlsView } from './controls.js';
import { h } from './dom.js';
import { logView, proofView } from './log.js';
import { overview } from './overview.js';
import { empty } from './parts.js';
import { policiesView } from './policies.js';
import { sagaView } from './saga.js';
import { sagasView } from './sagas.js';

/** @import { View } from './types.d.ts' */

/** Label and address of each navigation link. @type {readonly (readonly [string, string])[]} */
export const NAV_LINKS = [
  ['Overview', '#/'],
  ['Approvals', '#/approvals'],
  ['Calls', '#/calls'],
  ['Sagas', '#/sagas'],
  ['Controls', '#/controls'],
  ['Policies', '#/policies'],
  ['Log', '#/log'],
];

const ID = /^[0-9a-f-]{36}$/;

/** @param {string} hash @returns {View<any>} */
export function viewOf(hash) {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?');
  const [name = '', id] = path.split('/');
  const filter = Object.fromEntries(new URLSearchParams(query));
  if (name === '') return overview();
  if (name === 'calls') return id !== undefined && ID.test(id) ? callView(id) : callsView(filter);
  if (name === 'approvals') return id !== undefined && ID.test(id) ? approvalView(id) : approvalsView();
  if (name === 'sagas') return id !== undefined && ID.test(id) ? sagaView(id) : sagasView(filter);
  // `switches` is the old address of this view.
  if (name === 'controls' || name === 'switches') return controlsView();
  if (name === 'policies') return policiesView(filter);
  if (name === 'log') return id === undefined ? logView(filter) : proofView(id);
  return { title: 'Not found', load: async () => null, isAffectedBy: () => false, draw: () => notFound() };
}

function notFound() {
  return empty('There is no such view.', h('a', { href: '#/' }, 'Go to the overview'));
}
