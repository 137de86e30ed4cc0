// Freezes of agents, tools and everything, and circuit breakers.

import { at, get, post } from './api.js';
import { ask, REASON } from './ask.js';
import { h } from './dom.js';
import { plural } from './format.js';
import { badge, button, code, empty, row, section, since, table } from './parts.js';

/** @import { Breaker, Context, Frozen, View } from './types.d.ts' */
/** @typedef {{ agent: string, rules: Record<string, string>[], frozen: Frozen | null }} Agent */
/** @typedef {{ agents: Agent[], breakers: Breaker[], freezes: Frozen[] }} ControlsData */

const AGENT_HEADS = ['agent', 'rules', 'state', 'by', 'reason', ''];
const BREAKER_HEADS = ['upstream', 'breaker', 'by', 'reason', ''];
const FROZEN_TOOL_HEADS = ['tool', 'by', 'reason', 'since', ''];
const NEEDS_OPERATOR = 'You need the role operator.';

/** @returns {View<ControlsData>} */
export function controlsView() {
  return {
    title: 'Controls',
    load: async () => {
      const [agents, breakers, freezes] = await Promise.all(
        ['agents', 'breakers', 'freezes'].map((what) => get(`/admin/${what}`)),
      );
      return { agents: agents.items, breakers: breakers.items, freezes: freezes.items };
    },
    isAffectedBy: ({ name }) => ['switch', 'breaker', 'policies'].includes(name),
    draw: ({ agents, breakers, freezes }, context) => [
      killSwitch(
        freezes.find(({ scope }) => scope === 'all'),
        context,
      ),
      section(
        'Agents',
        h(
          'span',
          { class: 'dim' },
          'The gateway sends nothing new for a frozen agent. Its earlier calls can still be undone.',
        ),
        agents.length === 0
          ? empty('There are no agents.', 'Add one under ', code('agents'), ' in the policies.')
          : table(
              AGENT_HEADS,
              agents.map((agent) => agentRow(agent, context)),
              'Agents',
            ),
      ),
      section(
        'Frozen tools',
        button('Freeze a tool…', () => freezeTool(context), {
          disabled: !context.hasRole('operator'),
          why: NEEDS_OPERATOR,
        }),
        frozenTools(freezes, context),
      ),
      section(
        'Circuit breakers',
        h(
          'span',
          { class: 'dim' },
          'As this process sees them. A breaker that a person opens is open on every replica until a person closes it.',
        ),
        breakers.length === 0
          ? empty('There are no upstreams.')
          : table(
              BREAKER_HEADS,
              breakers.map((breaker) => breakerRow(breaker, context)),
              'Circuit breakers',
            ),
      ),
    ],
  };
}

/** @param {Context} context @param {string} path @param {Record<string, string>} [more] */
function act(context, path, more = {}) {
  return async (/** @type {Record<string, string>} */ { reason }) => {
    await post(path, { reason, ...more });
    context.notify('Done. Every replica has acknowledged it.');
    await context.refresh();
  };
}

/** @param {Frozen | undefined} all @param {Context} context */
function killSwitch(all, context) {
  const how = { disabled: !context.hasRole('operator'), why: NEEDS_OPERATOR };
  if (all !== undefined) {
    const lift = () =>
      ask({
        title: 'Unfreeze everything?',
        fields: [REASON],
        confirm: 'Unfreeze everything',
        run: act(context, '/admin/unfreeze'),
      });
    return h(
      'div',
      { class: 'notice bad' },
      h(
        'div',
        {},
        h('strong', {}, 'Everything is frozen'),
        h('p', {}, all.reason, ' · ', all.by, ' · ', since(all.at)),
      ),
      button('Unfreeze everything…', lift, { tone: 'main', ...how }),
    );
  }
  const stop = () =>
    ask({
      title: 'Freeze everything?',
      body: h(
        'p',
        {},
        'Once this is confirmed, no replica sends anything new, for any agent. Requests that are already on the wire may still arrive.',
      ),
      fields: [REASON, { name: 'typed', label: 'Type FREEZE to confirm', typed: 'FREEZE' }],
      confirm: 'Freeze everything',
      tone: 'danger',
      run: act(context, '/admin/freeze'),
    });
  return h(
    'div',
    { class: 'notice plain' },
    h('div', {}, h('strong', {}, 'Kill switch'), h('p', {}, 'Stops all new sends, on every replica.')),
    button('Freeze everything…', stop, { tone: 'danger', ...how }),
  );
}

/** @param {Agent} agent @param {Context} context */
function agentRow({ agent, rules, frozen }, context) {
  const how = {
    disabled: !context.hasRole('operator') || frozen?.scope === 'all',
    why: frozen?.scope === 'all' ? 'Everything is frozen.' : NEEDS_OPERATOR,
  };
  const freeze = () =>
    ask({
      title: `Freeze ${agent}?`,
      body: h('p', {}, 'The gateway sends nothing new for this agent. Its earlier calls can still be undone.'),
      fields: [REASON],
      confirm: 'Freeze',
      tone: 'danger',
      run: act(context, at`/admin/agents/${agent}/freeze`),
    });
  const unfreeze = () =>
    ask({
      title: `Unfreeze ${agent}?`,
      fields: [REASON],
      confirm: 'Unfreeze',
      run: act(context, at`/admin/agents/${agent}/unfreeze`),
    });
  return row(
    agent,
    [
      h('a', { href: `#/calls?agent=${encodeURIComponent(agent)}` }, agent),
      plural(rules.length, 'rule'),
      frozen === null ? badge('active', 'plain') : badge('frozen', 'bad'),
      frozen?.by ?? '',
      frozen?.reason ?? '',
      frozen === null
        ? button('Freeze…', freeze, { ...how, name: `Freeze ${agent}` })
        : button('Unfreeze…', unfreeze, { ...how, name: `Unfreeze ${agent}` }),
    ],
    AGENT_HEADS,
  );
}

/** @param {readonly Frozen[]} freezes @param {Context} context */
function frozenTools(freezes, context) {
  const tools = freezes.filter(({ scope }) => scope.startsWith('tool:'));
  if (tools.length === 0) return empty('No tool is frozen.');
  const rows = tools.map(({ scope, by, reason, at: when }) => {
    const tool = scope.slice('tool:'.length);
    const unfreeze = () =>
      ask({
        title: `Unfreeze ${tool}?`,
        fields: [REASON],
        confirm: 'Unfreeze',
        run: act(context, '/admin/unfreeze', { tool }),
      });
    return row(
      scope,
      [
        code(tool),
        by,
        reason,
        since(when),
        button('Unfreeze…', unfreeze, {
          name: `Unfreeze ${tool}`,
          disabled: !context.hasRole('operator'),
          why: NEEDS_OPERATOR,
        }),
      ],
      FROZEN_TOOL_HEADS,
    );
  });
  return table(FROZEN_TOOL_HEADS, rows, 'Frozen tools');
}

/** @param {Context} context */
function freezeTool(context) {
  ask({
    title: 'Freeze a tool?',
    fields: [{ name: 'tool', label: 'Tool', hint: 'The full name, such as payments.charge.' }, REASON],
    confirm: 'Freeze',
    tone: 'danger',
    run: ({ tool, reason }) => act(context, '/admin/freeze', { tool: (tool ?? '').trim() })({ reason: reason ?? '' }),
  });
}

/** @param {Breaker} breaker @param {Context} context */
function breakerRow({ upstream, state, by, reason }, context) {
  const how = { disabled: !context.hasRole('operator'), why: NEEDS_OPERATOR };
  const open = () =>
    ask({
      title: `Open the circuit breaker of ${upstream}?`,
      body: h('p', {}, 'No replica sends anything to this upstream until a person closes the breaker.'),
      fields: [REASON],
      confirm: 'Open',
      tone: 'danger',
      run: act(context, at`/admin/breakers/${upstream}/open`),
    });
  const close = () =>
    ask({
      title: `Close the circuit breaker of ${upstream}?`,
      body: h('p', {}, 'Calls are sent again. The automatic breaker starts to count from zero.'),
      fields: [REASON],
      confirm: 'Close',
      run: act(context, at`/admin/breakers/${upstream}/close`),
    });
  return row(
    upstream,
    [
      code(upstream),
      badge(state, state === 'closed' ? 'good' : state === 'open' ? 'bad' : 'doubt'),
      state === 'closed' ? '' : by,
      reason ?? '',
      state === 'closed'
        ? button('Open…', open, { ...how, name: `Open ${upstream}` })
        : button('Close…', close, { ...how, name: `Close ${upstream}` }),
    ],
    BREAKER_HEADS,
  );
}
