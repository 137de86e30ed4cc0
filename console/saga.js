// One saga: its steps, the undo of each, and what a person can do.

import { at, get, Problem, post } from './api.js';
import { ask, REASON } from './ask.js';
import { h, show } from './dom.js';
import { short, words } from './format.js';
import { badge, button, callLink, code, empty, facts, row, section, since, table, undoBadge } from './parts.js';
import { planList } from './plan.js';
import { drawSteps } from './steps.js';

/** @import { Context, Plan, Saga, Step, View } from './types.d.ts' */

const HEADS = ['step', 'state', 'tool', 'undo', 'undo tool', 'reason'];
const NEEDS_OPERATOR = 'You need the role operator.';

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
    isAffectedBy: ({ name, data }) => data['saga'] === id || steps.has(String(data['txn'])) || name === 'undo',
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
      ? empty(
          'This saga has no steps yet.',
          'A call with its id in the header ',
          code('Oncegate-Saga'),
          ' becomes a step.',
        )
      : h('div', { class: 'columns' }, section('Steps', null, drawSteps(saga)), section('About', null, about(saga))),
    saga.steps.length > 0 && section('Undo of each step', null, table(HEADS, saga.steps.map(stepRow), 'Steps')),
  ];
}

/** @param {Saga} saga */
function about(saga) {
  return facts([
    ['Started', since(saga.createdAt)],
    ['Ended', saga.endedAt === null ? null : since(saga.endedAt)],
    ['Expires', saga.expiresAt === null || saga.endedAt !== null ? null : since(saga.expiresAt)],
    ['Rolled back by', saga.by],
    ['Savepoints', saga.savepoints.length === 0 ? null : saga.savepoints.map(({ name }) => name).join(', ')],
    ['Calls', h('a', { href: `#/calls?saga=${saga.saga}` }, 'Show the calls of this saga')],
  ]);
}

/** @param {Step} step @param {number} position */
function stepRow({ txn, state, tool, undo, waived }, position) {
  return row(
    txn,
    [
      [`${position + 1} `, callLink(txn)],
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
  const disabled = !context.hasRole('operator');
  const how = { disabled, why: NEEDS_OPERATOR };
  if (saga.state === 'parked') {
    // The ttl ended before anything was undone, so a rollback starts with its plan.
    const isUntouched = saga.steps.every(({ undo }) => undo.state === 'none');
    return h(
      'div',
      { class: 'actions left' },
      isUntouched
        ? button('Roll back…', () => void plan(saga, context), { tone: 'danger' })
        : button('Resume…', () => resume(saga, context), { tone: 'main', ...how }),
      button('Close…', () => close(saga, context), how),
    );
  }
  if (saga.state !== 'open') return null;
  return h(
    'div',
    { class: 'actions left' },
    button('Roll back…', () => void plan(saga, context), { tone: 'danger' }),
  );
}

/** Asks the gateway for the plan, and shows it in the confirmation. @param {Saga} saga @param {Context} context @param {string} [to] */
async function plan(saga, context, to) {
  const path = at`/admin/sagas/${saga.saga}/rollback`;
  const until = to === undefined ? {} : { to };
  /** @type {() => Promise<Plan>} */
  const loadPlan = () => post(path, { dryRun: true, ...until });
  try {
    let dry = await loadPlan();
    if (!context.hasRole('operator')) return showPlan(dry);
    const shown = h('div', {}, planList(dry));
    ask({
      title: 'Roll back this saga?',
      body: [shown, savepoints(saga, to, (name) => void plan(saga, context, name))],
      fields: [REASON],
      confirm: 'Roll back',
      tone: 'danger',
      run: async ({ reason }) => {
        try {
          await post(`${path}?wait=5`, { reason, ...until, digest: dry.digest });
        } catch (error) {
          // The agent took another step. The person must see the new plan before confirming again.
          if (error instanceof Problem && error.code === 'conflict') {
            dry = await loadPlan();
            show(shown, planList(dry));
          }
          throw error;
        }
        context.notify('The rollback has started. It continues by itself, even if you close this page.');
        await context.refresh();
      },
    });
  } catch (error) {
    context.notify(error instanceof Error ? error.message : String(error));
  }
}

/** @param {Plan} dry */
function showPlan(dry) {
  ask({
    title: 'Plan of a rollback',
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
    'Roll back to: ',
    saga.savepoints.map(({ name }) => [button(name, pick(name), { tone: 'quiet', disabled: name === to }), ' ']),
    to !== undefined && button('the start', pick(undefined), { tone: 'quiet' }),
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
      h(
        'p',
        {},
        'The gateway tries every failed undo again. If you waive a step, the rollback no longer waits for it:',
      ),
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
              ' waive ',
              code(tool),
              ' ',
              short(txn),
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
      context.notify('The rollback continues.');
      await context.refresh();
    },
  });
}

/** @param {Saga} saga @param {Context} context */
function close(saga, context) {
  ask({
    title: 'Close this saga?',
    body: h('p', {}, 'The gateway undoes nothing more of this saga. You take care of what remains. This is final.'),
    fields: [REASON],
    confirm: 'Close the saga',
    tone: 'danger',
    run: async ({ reason }) => {
      await post(at`/admin/sagas/${saga.saga}/close`, { reason });
      context.notify('The saga is closed.');
      await context.refresh();
    },
  });
}
