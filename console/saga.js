// One saga: its steps, what undoes each, and what a person may do.

import { at, get, Problem, post } from './api.js';
import { ask, REASON } from './ask.js';
import { h, show } from './dom.js';
import { short, words } from './format.js';
import { badge, button, callLink, code, empty, facts, row, section, since, table, undoBadge } from './parts.js';
import { planList } from './plan.js';
import { stepsDrawn } from './steps.js';

/** @import { Context, Plan, Saga, Step, View } from './types.d.ts' */

const HEADS = ['step', 'state', 'tool', 'undo', 'with', 'why'];
const NEEDS_OPERATOR = 'This needs the role operator.';

/** @param {string} id @returns {View<Saga>} */
export function sagaView(id) {
  /** @type {Set<string>} */
  let steps = new Set();
  return {
    title: 'Saga',
    load: async () => {
      /** @type {Saga} */
      const saga = await get(at`/admin/sagas/${id}`);
      steps = new Set(saga.steps.map(({ txn }) => txn));
      return saga;
    },
    draw,
    hears: ({ name, data }) => data['saga'] === id || steps.has(String(data['txn'])) || name === 'undo',
  };
}

/** @param {Saga} saga @param {Context} context */
function draw(saga, context) {
  return [
    h(
      'div',
      { class: 'subject' },
      badge(saga.state),
      h('strong', {}, saga.name ?? 'unnamed'),
      h('span', { class: 'dim' }, 'of'),
      saga.agent,
      h('code', { class: 'whole' }, saga.saga),
    ),
    saga.reason !== null &&
      h(
        'div',
        { class: `notice ${saga.state === 'parked' ? 'bad' : 'plain'}` },
        h('div', {}, h('strong', {}, words(saga.state)), h('p', {}, saga.reason)),
      ),
    actions(saga, context),
    saga.steps.length === 0
      ? empty('It has no step so far.', 'Each call that names it in ', code('Oncegate-Saga'), ' becomes one.')
      : h('div', { class: 'columns' }, section('Steps', null, stepsDrawn(saga)), section('About', null, about(saga))),
    saga.steps.length > 0 && section('What becomes of each', null, table(HEADS, saga.steps.map(stepRow), 'Steps')),
  ];
}

/** @param {Saga} saga */
function about(saga) {
  return facts([
    ['Began', since(saga.createdAt)],
    ['Ended', saga.endedAt === null ? null : since(saga.endedAt)],
    ['Runs out', saga.expiresAt === null || saga.endedAt !== null ? null : since(saga.expiresAt)],
    ['Rolled back by', saga.by],
    ['Savepoints', saga.savepoints.length === 0 ? null : saga.savepoints.map(({ name }) => name).join(', ')],
    ['Calls', h('a', { href: `#/calls?saga=${saga.saga}` }, 'of this saga')],
  ]);
}

/** @param {Step} step @param {number} place */
function stepRow({ txn, state, tool, undo, waived }, place) {
  return row(
    txn,
    [
      [`${place + 1} `, callLink(txn)],
      badge(state),
      code(tool),
      [undoBadge(undo.state), waived === true && ' waived'],
      undo.tool === null
        ? words(undo.kind ?? 'none')
        : [code(undo.tool), ' ', undo.txn === null ? '' : callLink(undo.txn)],
      h('span', { class: 'dim' }, undo.reason ?? ''),
    ],
    HEADS,
  );
}

/** @param {Saga} saga @param {Context} context */
function actions(saga, context) {
  const disabled = !context.may('operator');
  const how = { disabled, why: NEEDS_OPERATOR };
  if (saga.state === 'parked') {
    // Its time ran out before anything was undone: then there is a plan to look at first.
    const isUntouched = saga.steps.every(({ undo }) => undo.state === 'none');
    return h(
      'div',
      { class: 'actions left' },
      isUntouched
        ? button('Roll back…', () => void plan(saga, context), { tone: 'danger' })
        : button('Resume…', () => resume(saga, context), { tone: 'main', ...how }),
      button('Close by hand…', () => close(saga, context), how),
    );
  }
  if (saga.state !== 'open') return null;
  return h(
    'div',
    { class: 'actions left' },
    button('Roll back…', () => void plan(saga, context), { tone: 'danger' }),
  );
}

/** The plan is asked of the gateway, and shown before anything can be confirmed. @param {Saga} saga @param {Context} context @param {string} [to] */
async function plan(saga, context, to) {
  const path = at`/admin/sagas/${saga.saga}/rollback`;
  const until = to === undefined ? {} : { to };
  /** @type {() => Promise<Plan>} */
  const look = () => post(path, { dryRun: true, ...until });
  try {
    let dry = await look();
    if (!context.may('operator')) return showPlan(dry);
    const shown = h('div', {}, planList(dry));
    ask({
      title: 'Roll this saga back?',
      body: [shown, savepoints(saga, to, (name) => void plan(saga, context, name))],
      fields: [REASON],
      confirm: 'Roll back',
      tone: 'danger',
      run: async ({ reason }) => {
        try {
          await post(`${path}?wait=5`, { reason, ...until, digest: dry.digest });
        } catch (error) {
          // The saga went on meanwhile: what would be undone now is for them to see before they say yes again.
          if (error instanceof Problem && error.code === 'conflict') {
            dry = await look();
            show(shown, planList(dry));
          }
          throw error;
        }
        context.say('The rollback is under way. It goes on by itself, whatever happens to this page.');
        await context.refresh();
      },
    });
  } catch (error) {
    context.say(error instanceof Error ? error.message : String(error));
  }
}

/** @param {Plan} dry */
function showPlan(dry) {
  ask({
    title: 'What a rollback would do',
    body: [planList(dry), h('p', { class: 'dim' }, NEEDS_OPERATOR)],
    fields: [],
    confirm: 'Close',
    run: async () => {},
  });
}

/** @param {Saga} saga @param {string | undefined} to @param {(name: string | undefined) => void} choose */
function savepoints(saga, to, choose) {
  if (saga.savepoints.length === 0) return null;
  const pick = (/** @type {string | undefined} */ name) => () => {
    document.querySelector('dialog')?.close();
    choose(name);
  };
  return h(
    'p',
    {},
    'Back to: ',
    saga.savepoints.map(({ name }) => [button(name, pick(name), { tone: 'quiet', disabled: name === to }), ' ']),
    to !== undefined && button('the beginning', pick(undefined), { tone: 'quiet' }),
  );
}

/** @param {Saga} saga @param {Context} context */
function resume(saga, context) {
  const stuck = saga.steps.filter(
    ({ undo, state }) => undo.state === 'failed' || undo.state === 'irreversible' || state === 'in_doubt',
  );
  ask({
    title: 'Resume the rollback?',
    body: [
      h('p', {}, 'What failed is tried again. What you leave as it is no longer holds up the rest:'),
      h(
        'ul',
        { class: 'waive' },
        stuck.map(({ txn, tool, undo }) =>
          h(
            'li',
            {},
            h(
              'label',
              {},
              h('input', { type: 'checkbox', name: `waive ${txn}`, value: txn }),
              ' leave ',
              code(tool),
              ' ',
              short(txn),
              ' as it is',
            ),
            h('small', { class: 'dim' }, undo.reason ?? ''),
          ),
        ),
      ),
    ],
    fields: [REASON],
    confirm: 'Resume',
    run: async ({ reason, ...more }) => {
      const waive = Object.entries(more).flatMap(([name, txn]) => (name.startsWith('waive ') ? [txn] : []));
      await post(at`/admin/sagas/${saga.saga}/resume?wait=5`, { reason, ...(waive.length === 0 ? {} : { waive }) });
      context.say('The rollback goes on.');
      await context.refresh();
    },
  });
}

/** @param {Saga} saga @param {Context} context */
function close(saga, context) {
  ask({
    title: 'Close this saga by hand?',
    body: h('p', {}, 'Nothing more of it is undone by the gateway: what is left is yours to see to. This is final.'),
    fields: [REASON],
    confirm: 'Close it',
    tone: 'danger',
    run: async ({ reason }) => {
      await post(at`/admin/sagas/${saga.saga}/close`, { reason });
      context.say('Closed.');
      await context.refresh();
    },
  });
}
