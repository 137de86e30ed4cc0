// The dialog that asks for a confirmation and a reason before an action.

import { asProblem } from './api.js';
import { h, show } from './dom.js';
import { problemBox } from './parts.js';

/** @import { Child } from './types.d.ts' */

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {'text' | 'area' | 'choice' | 'check'} [kind]
 * @property {readonly (readonly [string, string])[]} [options] value and label of each choice
 * @property {string} [hint]
 * @property {string} [value]
 * @property {boolean} [optional]
 * @property {string} [typed] text that the person must type exactly
 */

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {Child} [body]
 * @property {readonly Field[]} fields
 * @property {string} confirm
 * @property {'danger' | 'main'} [tone]
 * @property {(values: Record<string, string>) => Promise<void>} run
 */

/** Every action needs a reason. @type {Field} */
export const REASON = {
  name: 'reason',
  label: 'Reason',
  kind: 'area',
  hint: 'The audit log keeps the reason and your name for ever.',
};

/** @param {Field} field */
function control({ name, kind = 'text', options = [], value, optional, typed }) {
  const required = optional !== true && kind !== 'check';
  const common = { id: `ask-${name}`, name, required, 'aria-describedby': `ask-${name}-hint`, autocomplete: 'off' };
  if (kind === 'area') {
    const area = h('textarea', { ...common, rows: 3, maxlength: 2000 });
    area.value = value ?? '';
    return area;
  }
  if (kind === 'choice') {
    const choices = options.map(([each, label]) => h('option', { value: each, selected: each === value }, label));
    return h('select', common, choices);
  }
  if (kind === 'check') return h('input', { ...common, type: 'checkbox' });
  const input = h('input', { ...common, type: 'text', spellcheck: 'false' });
  input.value = value ?? '';
  if (typed !== undefined) {
    const compare = () => input.setCustomValidity(input.value === typed ? '' : `Type ${typed} to confirm.`);
    input.addEventListener('input', compare);
    compare();
  }
  return input;
}

/** @param {Field} field */
function labelled(field) {
  const hint = h('small', { id: `ask-${field.name}-hint`, class: 'dim' }, field.hint ?? '');
  const label = h(
    'label',
    { for: `ask-${field.name}` },
    field.label,
    field.optional === true && h('span', { class: 'dim' }, ' (optional)'),
  );
  return h('div', { class: `field ${field.kind ?? 'text'}` }, label, control(field), hint);
}

/** Opens a dialog that stays open until the action succeeds or is cancelled. It shows the errors of the gateway. @param {Question} question */
export function ask({ title, body, fields, confirm, tone = 'main', run }) {
  const errorBox = h('div', {});
  const yes = h('button', { type: 'submit', class: tone }, confirm);
  const close = () => dialog.close();
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form).entries());
    yes.disabled = true;
    try {
      await run(/** @type {Record<string, string>} */ (values));
      dialog.close();
    } catch (error) {
      show(errorBox, problemBox(asProblem(error)));
    } finally {
      yes.disabled = false;
    }
  };
  const form = h(
    'form',
    { on: { submit } },
    h('h2', { id: 'ask-title' }, title),
    h('div', { class: 'ask-body' }, body),
    fields.map(labelled),
    errorBox,
    h('div', { class: 'actions' }, h('button', { type: 'button', on: { click: close } }, 'Cancel'), yes),
  );
  const dialog = h('dialog', { 'aria-labelledby': 'ask-title' }, form);
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  const first = /** @type {HTMLElement | null} */ (form.querySelector('textarea, input, select'));
  first?.focus();
}
