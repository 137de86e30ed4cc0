// The sign-in form. People sign in with their bearer key.

import { asProblem, get, session } from './api.js';
import { h, show } from './dom.js';
import { code, problemBox } from './parts.js';

/** @import { Stats } from './types.d.ts' */

/**
 * @param {(stats: Stats) => void} startSession
 * @param {string} [why] why the last session ended
 */
export function signIn(startSession, why) {
  const errorBox = h('div', {});
  const input = h('input', { id: 'key', type: 'password', required: true, autocomplete: 'off', spellcheck: 'false' });
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(key))
      return show(
        errorBox,
        h('p', { class: 'problem' }, 'A key has only visible ASCII characters and no spaces. Paste the whole key.'),
      );
    session.begin(key);
    try {
      startSession(await get('/admin/stats'));
    } catch (error) {
      session.end();
      show(errorBox, problemBox(asProblem(error)));
      input.select();
    }
  };
  return h(
    'form',
    { class: 'sign-in', on: { submit } },
    h('h1', {}, 'Sign in'),
    why !== undefined && h('p', { class: 'problem' }, why),
    h('div', { class: 'field' }, h('label', { for: 'key' }, 'Key of a person'), input),
    errorBox,
    h('div', { class: 'actions' }, h('button', { type: 'submit', class: 'main' }, 'Sign in')),
    h(
      'p',
      { class: 'dim' },
      'The key stays in this tab and is sent to this gateway only. The demo prints a key at start, as ',
      code('admin key'),
      '.',
    ),
    h(
      'p',
      { class: 'dim' },
      'No key yet? ',
      code('npx oncegate key new'),
      ' makes one. Put its digest under ',
      code('people'),
      ' in the policies, with the roles ',
      code('viewer'),
      ', ',
      code('approver'),
      ', ',
      code('operator'),
      ' or ',
      code('admin'),
      '.',
    ),
  );
}
