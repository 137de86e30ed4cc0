import type { Agent, JwtSpec, Person, Policies, Rule, Tool } from '../domain/policy.ts';
import { BUILT_IN } from './built-in.ts';
import { ruleId } from './compile-agent.ts';
import { shapeOf } from './compile-request.ts';
import type { Declarations, Declared } from './declared.ts';
import { at, didYouMean, keyOf, listed, type Place, type Report } from './faults.ts';
import { globMatcher, isGlob } from './glob.ts';
import type { ToolFile } from './schema.ts';

export { BUILT_IN };

export const MOST_MODEL_NAME = 64;

/** Model vendors refuse dots in names. */
export function modelName(tool: string): string {
  return tool.replaceAll('.', '__');
}

/** What no entry shows by itself: names that point nowhere, two that collide, rules and approvals that cannot work. */
export function link(declared: Declarations, policies: Omit<Policies, 'version' | 'files'>, report: Report): void {
  const context = { declared, policies, report };
  for (const tool of declared.tools.values()) linkTool(context, tool);
  for (const upstream of declared.upstreams.values()) {
    if (upstream.name === 'oncegate')
      report.fault({ ...upstream.place, key: true }, 'oncegate is the name of the gateway itself');
  }
  sameModelName(context);
  sameRequest(context);
  sameKey(context);
  sameToken(context);
  for (const agent of declared.agents.values()) linkRules(context, agent);
  nobodyMayCall(context);
}

interface Context {
  readonly declared: Declarations;
  readonly policies: Omit<Policies, 'version' | 'files'>;
  readonly report: Report;
}

function linkTool({ declared, policies, report }: Context, { name, place, value }: Declared<ToolFile>): void {
  if (name.startsWith('oncegate.'))
    report.fault({ ...place, key: true }, 'oncegate.* are the tools of the gateway itself');
  if (value === undefined) return;
  const upstream = declared.upstreams.get(value.upstream);
  if (upstream === undefined) {
    const near = didYouMean(value.upstream, declared.upstreams.keys());
    report.fault(at(place, 'upstream'), `there is no upstream ${JSON.stringify(value.upstream)}${near}`);
  } else if (
    upstream.value?.adapter === 'mcp' &&
    upstream.value.expose !== 'bare' &&
    !name.startsWith(`${value.upstream}.`)
  ) {
    report.fault(
      { ...place, key: true },
      `a tool of the mcp upstream ${value.upstream} is named ${value.upstream}.<name>`,
    );
  }
  if (upstream?.value?.command !== undefined && value.once?.by === 'key' && value.once.header !== undefined) {
    report.fault(at(place, 'once', 'header'), 'a command takes no headers, so no key would arrive: use field');
  }
  const refer = (tool: string | undefined, where: Place, mustRead: boolean): void => {
    if (tool === undefined) return;
    const target = declared.tools.get(tool);
    if (target === undefined) {
      if (!mustRead && mayBeImported(policies, tool)) return;
      report.fault(where, `there is no tool ${JSON.stringify(tool)}${didYouMean(tool, declared.tools.keys())}`);
    } else if (mustRead && target.value !== undefined && target.value.effect !== 'read') {
      report.fault(where, `${tool} is not a read: give it effect: read`);
    } else if (mustRead && (target.value?.locks?.length ?? 0) > 0) {
      report.fault(where, `${tool} declares locks, which looking at a call's effect cannot wait for: use one without`);
    } else if (!mustRead && target.value?.effect === 'read') {
      report.fault(where, `${tool} is a read: it undoes nothing`);
    }
  };
  refer(value.undo?.tool, at(place, 'undo', 'tool'), false);
  refer(value.observe?.tool, at(place, 'observe', 'tool'), true);
  if (value.once?.by === 'probe') refer(value.once.probe.tool, at(place, 'once', 'probe', 'tool'), true);
}

/** Model vendors refuse dots, so tools are offered with `__`: that name must be short and nobody else's. */
function sameModelName({ declared, report }: Context): void {
  const seen = new Map<string, string>();
  for (const { name, place } of declared.tools.values()) {
    const model = modelName(name);
    const other = seen.get(model);
    if (other !== undefined)
      report.fault({ ...place, key: true }, `models would see ${name} and ${other} both as ${model}`);
    else if (model.length > MOST_MODEL_NAME) {
      report.fault(
        { ...place, key: true },
        `models would see ${model}, which is longer than ${MOST_MODEL_NAME} characters`,
      );
    }
    seen.set(model, name);
  }
}

function sameRequest({ declared, policies, report }: Context): void {
  const seen = new Map<string, Tool>();
  for (const tool of policies.tools.values()) {
    if (tool.request === undefined) continue;
    const shape = `${tool.request.method} ${shapeOf(tool.request.pathTemplate)}`;
    const other = seen.get(`${tool.upstream} ${shape}`);
    const place = declared.tools.get(tool.name)?.place;
    if (other !== undefined && place !== undefined) {
      report.fault({ ...place, key: true }, `${tool.name} and ${other.name} are the same request: ${shape}`);
    }
    seen.set(`${tool.upstream} ${shape}`, other ?? tool);
  }
}

function sameKey({ declared, policies, report }: Context): void {
  const seen = new Map<string, string>();
  const check = (owner: Agent | Person, kind: string, place: Place | undefined): void => {
    for (const key of new Set(owner.keys.map((digest) => digest.toString('hex')))) {
      const other = seen.get(key);
      if (other !== undefined && place !== undefined)
        report.fault(at(place, 'keys'), `${kind} ${owner.name} has a key of ${other}`);
      seen.set(key, `${kind} ${owner.name}`);
    }
  };
  for (const agent of policies.agents.values()) check(agent, 'agent', declared.agents.get(agent.name)?.place);
  for (const person of policies.people.values()) check(person, 'person', declared.people.get(person.name)?.place);
}

/** A token belongs to one agent: two that would both take it must tell each other apart by a claim. */
function sameToken({ declared, policies, report }: Context): void {
  const seen: { readonly name: string; readonly jwt: JwtSpec }[] = [];
  for (const { name, jwt } of policies.agents.values()) {
    const place = declared.agents.get(name)?.place;
    if (jwt === undefined || place === undefined) continue;
    for (const other of seen) {
      if (other.jwt.issuer !== jwt.issuer) continue;
      if (other.jwt.allowPrivate !== jwt.allowPrivate)
        report.fault(at(place, 'jwt'), `allowPrivate of this issuer is not the same for agent ${other.name}`);
      if (other.jwt.audience === jwt.audience && !contradict(other.jwt.claims, jwt.claims))
        report.fault(
          at(place, 'jwt'),
          `agent ${other.name} would accept the same token: give one claim a different value in each`,
        );
    }
    seen.push({ name, jwt });
  }
}

function contradict(a: JwtSpec['claims'], b: JwtSpec['claims']): boolean {
  return Object.entries(a).some(([claim, value]) => Object.hasOwn(b, claim) && b[claim] !== value);
}

function linkRules(
  context: Context,
  { name, place, value }: Declared<{ rules?: readonly object[] | undefined }>,
): void {
  const { policies, report } = context;
  const compiled = new Map(policies.agents.get(name)?.rules.map((rule) => [rule.id, rule]));
  const earlier: Rule[] = [];
  for (const index of (value?.rules ?? []).keys()) {
    const where = at(place, 'rules', index);
    const rule = compiled.get(ruleId(name, index, where));
    if (rule === undefined) continue;
    checkReach(context, rule, keyOf(where, rule.verdict));
    const above = earlier.find((other) => swallows(other, rule));
    if (above !== undefined)
      report.warn(keyOf(where, rule.verdict), `never reached: ${above.id} already allows all of it`);
    if (rule.approve !== undefined && rule.approve !== 'never') checkApprovers(context, rule, at(where, 'approve'));
    earlier.push(rule);
  }
  if (value !== undefined && !value.rules?.length) {
    report.warn({ ...place, key: true }, `${name} has no rules: it may call nothing`);
  }
}

function swallows(other: Rule, rule: Rule): boolean {
  if (other.verdict !== 'allow' || rule.verdict !== 'allow' || other.when !== undefined) return false;
  if (other.effect !== undefined && other.effect !== rule.effect) return false;
  return other.pattern === rule.pattern || (!isGlob(rule.pattern) && other.covers(rule.pattern));
}

function checkReach({ declared, policies, report }: Context, rule: Rule, place: Place): void {
  const { pattern, effect } = rule;
  if (isGlob(pattern)) {
    const known = [...declared.tools.keys(), ...Object.keys(BUILT_IN)];
    if (!known.some(rule.covers) && !importsAny(policies)) report.warn(place, `${pattern} matches no tool`);
    return;
  }
  const tool = declared.tools.get(pattern);
  if (tool !== undefined) {
    const actual = tool.value === undefined ? effect : (tool.value.effect ?? 'write');
    if (effect !== undefined && effect !== actual)
      report.fault(place, `this rule can never match: ${pattern} is a ${actual}`);
    return;
  }
  if (pattern in BUILT_IN || mayBeImported(policies, pattern)) return;
  const near = didYouMean(pattern, [...declared.tools.keys(), ...Object.keys(BUILT_IN)]);
  report.fault(place, `this rule can never match: there is no tool ${JSON.stringify(pattern)}${near}`);
}

function importsAny(policies: Context['policies']): boolean {
  return [...policies.upstreams.values()].some((upstream) => upstream.import !== undefined);
}

/** Whether an mcp upstream's `import` could offer a tool of this name: only that server knows what it has. */
function mayBeImported(policies: Context['policies'], name: string): boolean {
  return [...policies.upstreams.values()].some((upstream) => {
    if (upstream.import === undefined) return false;
    if (upstream.expose === 'bare') return globMatcher(upstream.import)(name);
    return name.startsWith(`${upstream.name}.`) && globMatcher(upstream.import)(name.slice(upstream.name.length + 1));
  });
}

function checkApprovers({ declared, policies, report }: Context, rule: Rule, place: Place): void {
  if (rule.approve === undefined || rule.approve === 'never') return;
  const { by, quorum } = rule.approve;
  const people = [...policies.people.values()];
  const groups = new Set([...declared.people.values()].flatMap((person) => person.value?.groups ?? []));
  let good = true;
  for (const [index, group] of by.entries()) {
    if (groups.has(group)) continue;
    good = false;
    report.fault(at(place, 'by', index), `nobody is in the group ${JSON.stringify(group)}${didYouMean(group, groups)}`);
  }
  const able = people
    .filter((person) => person.roles.includes('approver') || person.roles.includes('admin'))
    .filter((person) => by.length === 0 || person.groups.some((group) => by.includes(group)));
  if (!good || able.length >= quorum || [...declared.people.values()].some(({ value }) => value === undefined)) return;
  if (people.length === 0) report.warn(place, 'nobody can approve this: there are no people');
  else {
    const who = able.length === 0 ? 'nobody can' : `only ${listed(able.map((person) => person.name))} can`;
    report.fault(place, `quorum ${quorum} can never be reached: ${who} approve this`);
  }
}

function nobodyMayCall({ declared, policies, report }: Context): void {
  const used = new Set<string>();
  for (const tool of policies.tools.values()) {
    if (tool.undo.tool !== undefined) used.add(tool.undo.tool);
    if (tool.observe !== undefined) used.add(tool.observe.tool);
    if (tool.once.by === 'probe') used.add(tool.once.tool);
  }
  const rules = [...policies.agents.values()].flatMap((agent) => agent.rules);
  for (const { name, place, value, imported } of declared.tools.values()) {
    if (used.has(name) || value === undefined || imported) continue;
    const effect = value.effect ?? 'write';
    const callable = rules.some(
      (rule) => rule.verdict === 'allow' && rule.covers(name) && (rule.effect ?? effect) === effect,
    );
    if (!callable) report.warn({ ...place, key: true }, `no agent may call ${name}`);
  }
}
