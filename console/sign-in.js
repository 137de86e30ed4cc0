// Whoever looks after the gateway has a key of a person.

import { asProblem, get, session } from './api.js';
import { h, show } from './dom.js';
import { code, problemBox } from './parts.js';

/** @import { Stats } from './types.d.ts' */

/**
 * @param {(stats: Stats) => void} enter
 * @param {string} [why] what ended the session before
 */
export function signIn(enter, why) {
  const said = h('div', {});
  const input = h('input', { id: 'key', type: 'password', required: true, autocomplete: 'off', spellcheck: 'false' });
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(key))
      return show(said, h('p', { class: 'problem' }, 'A key has no spaces and only plain characters. Paste it whole.'));
    session.begin(key);
    try {
      enter(await get('/admin/stats'));
    } catch (error) {
      session.end();
      show(said, problemBox(asProblem(error)));
      input.select();
    }
  };
  return h(
    'form',
    { class: 'sign-in', on: { submit } },
    h('h1', {}, 'Sign in'),
    why !== undefined && h('p', { class: 'problem' }, why),
    h('div', { class: 'field' }, h('label', { for: 'key' }, 'Key of a person'), input),
    said,
    h('div', { class: 'actions' }, h('button', { type: 'submit', class: 'main' }, 'Sign in')),
    h(
      'p',
      { class: 'dim' },
      'The key stays in this tab and goes nowhere but to this gateway. The demo prints one when it starts, as ',
      code('admin key'),
      '.',
    ),
    h(
      'p',
      { class: 'dim' },
      'None yet? ',
      code('npx oncegate key new'),
      ' makes one; its digest goes under ',
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
