// Every view has an address.

import { approvalsView, approvalView } from './approvals.js';
import { callView } from './call.js';
import { callsView } from './calls.js';
import { h } from './dom.js';
import { logView, proofView } from './log.js';
import { overview } from './overview.js';
import { empty } from './parts.js';
import { policiesView } from './policies.js';
import { sagaView } from './saga.js';
import { sagasView } from './sagas.js';
import { switchesView } from './switches.js';

/** @import { View } from './types.d.ts' */

/** @type {readonly (readonly [string, string])[]} */
export const VIEWS = [
  ['Overview', '#/'],
  ['Approvals', '#/approvals'],
  ['Calls', '#/calls'],
  ['Sagas', '#/sagas'],
  ['Switches', '#/switches'],
  ['Policies', '#/policies'],
  ['Log', '#/log'],
];

const ID = /^[0-9a-f-]{36}$/;

/** @param {string} hash @returns {View<any>} */
export function viewOf(hash) {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?');
  const [name = '', id] = path.split('/');
  const asked = Object.fromEntries(new URLSearchParams(query));
  if (name === '') return overview();
  if (name === 'calls') return id !== undefined && ID.test(id) ? callView(id) : callsView(asked);
  if (name === 'approvals') return id !== undefined && ID.test(id) ? approvalView(id) : approvalsView();
  if (name === 'sagas') return id !== undefined && ID.test(id) ? sagaView(id) : sagasView(asked);
  if (name === 'switches') return switchesView();
  if (name === 'policies') return policiesView(asked);
  if (name === 'log') return id === undefined ? logView(asked) : proofView(id);
  return { title: 'Nothing here', load: async () => null, hears: () => false, draw: () => lost() };
}

function lost() {
  return empty('There is no such view.', h('a', { href: '#/' }, 'To the overview'));
}
