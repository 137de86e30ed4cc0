import type { Agent, JwtSpec, Person, Policies, Rule, Tool } from '../../domain/policy.ts';
import { BUILT_IN_TOOL_EFFECTS } from '../built-in-tools.ts';
import type { Declarations, DeclaredEntry } from '../declarations.ts';
import { type Diagnostics, didYouMean, formatList, locateChild, locateKey, type SourceLocation } from '../faults.ts';
import { compileGlob, isGlob } from '../glob.ts';
import type { ToolDeclaration } from '../policy-file-schema.ts';
import { formatRuleId } from './compile-agent.ts';
import { normalizePathTemplate } from './compile-request.ts';

export { BUILT_IN_TOOL_EFFECTS as BUILT_IN };

export const MAX_MODEL_NAME_LENGTH = 64;

/** Model vendors refuse dots in names. */
export function toModelName(tool: string): string {
  return tool.replaceAll('.', '__');
}

/** What no entry shows by itself: names that point nowhere, two that collide, rules and approvals that cannot work. */
export function crossCheck(
  declared: Declarations,
  policies: Omit<Policies, 'version' | 'files'>,
  report: Diagnostics,
): void {
  const context = { declared, policies, report };
  for (const tool of declared.tools.values()) checkToolReferences(context, tool);
  for (const upstream of declared.upstreams.values()) {
    if (upstream.name === 'oncegate')
      report.addError({ ...upstream.place, key: true }, 'oncegate is the name of the gateway itself');
  }
  checkModelNames(context);
  checkDuplicateRequests(context);
  checkDuplicateKeys(context);
  checkOverlappingJwts(context);
  for (const agent of declared.agents.values()) checkRules(context, agent);
  warnUncallableTools(context);
}

interface CrossCheckInput {
  readonly declared: Declarations;
  readonly policies: Omit<Policies, 'version' | 'files'>;
  readonly report: Diagnostics;
}

function checkToolReferences(
  { declared, policies, report }: CrossCheckInput,
  { name, place, value }: DeclaredEntry<ToolDeclaration>,
): void {
  if (name.startsWith('oncegate.'))
    report.addError({ ...place, key: true }, 'oncegate.* are the tools of the gateway itself');
  if (value === undefined) return;
  const upstream = declared.upstreams.get(value.upstream);
  if (upstream === undefined) {
    const near = didYouMean(value.upstream, declared.upstreams.keys());
    report.addError(locateChild(place, 'upstream'), `there is no upstream ${JSON.stringify(value.upstream)}${near}`);
  } else if (
    upstream.value?.adapter === 'mcp' &&
    upstream.value.expose !== 'bare' &&
    !name.startsWith(`${value.upstream}.`)
  ) {
    report.addError(
      { ...place, key: true },
      `a tool of the mcp upstream ${value.upstream} is named ${value.upstream}.<name>`,
    );
  }
  if (upstream?.value?.command !== undefined && value.once?.by === 'key' && value.once.header !== undefined) {
    report.addError(
      locateChild(place, 'once', 'header'),
      'a command takes no headers, so no key would arrive: use field',
    );
  }
  const refer = (tool: string | undefined, where: SourceLocation, mustRead: boolean): void => {
    if (tool === undefined) return;
    const target = declared.tools.get(tool);
    if (target === undefined) {
      if (!mustRead && canBeImported(policies, tool)) return;
      report.addError(where, `there is no tool ${JSON.stringify(tool)}${didYouMean(tool, declared.tools.keys())}`);
    } else if (mustRead && target.value !== undefined && target.value.effect !== 'read') {
      report.addError(where, `${tool} is not a read: give it effect: read`);
    } else if (mustRead && (target.value?.locks?.length ?? 0) > 0) {
      report.addError(
        where,
        `${tool} declares locks, which looking at a call's effect cannot wait for: use one without`,
      );
    } else if (!mustRead && target.value?.effect === 'read') {
      report.addError(where, `${tool} is a read: it undoes nothing`);
    }
  };
  refer(value.undo?.tool, locateChild(place, 'undo', 'tool'), false);
  refer(value.observe?.tool, locateChild(place, 'observe', 'tool'), true);
  if (value.once?.by === 'probe') refer(value.once.probe.tool, locateChild(place, 'once', 'probe', 'tool'), true);
}

/** Model vendors refuse dots, so tools are offered with `__`: that name must be short and nobody else's. */
function checkModelNames({ declared, report }: CrossCheckInput): void {
  const seen = new Map<string, string>();
  for (const { name, place } of declared.tools.values()) {
    const model = toModelName(name);
    const other = seen.get(model);
    if (other !== undefined)
      report.addError({ ...place, key: true }, `models would see ${name} and ${other} both as ${model}`);
    else if (model.length > MAX_MODEL_NAME_LENGTH) {
      report.addError(
        { ...place, key: true },
        `models would see ${model}, which is longer than ${MAX_MODEL_NAME_LENGTH} characters`,
      );
    }
    seen.set(model, name);
  }
}

function checkDuplicateRequests({ declared, policies, report }: CrossCheckInput): void {
  const seen = new Map<string, Tool>();
  for (const tool of policies.tools.values()) {
    if (tool.request === undefined) continue;
    const shape = `${tool.request.method} ${normalizePathTemplate(tool.request.pathTemplate)}`;
    const other = seen.get(`${tool.upstream} ${shape}`);
    const place = declared.tools.get(tool.name)?.place;
    if (other !== undefined && place !== undefined) {
      report.addError({ ...place, key: true }, `${tool.name} and ${other.name} are the same request: ${shape}`);
    }
    seen.set(`${tool.upstream} ${shape}`, other ?? tool);
  }
}

function checkDuplicateKeys({ declared, policies, report }: CrossCheckInput): void {
  const seen = new Map<string, string>();
  const check = (owner: Agent | Person, kind: string, place: SourceLocation | undefined): void => {
    for (const key of new Set(owner.keys.map((digest) => digest.toString('hex')))) {
      const other = seen.get(key);
      if (other !== undefined && place !== undefined)
        report.addError(locateChild(place, 'keys'), `${kind} ${owner.name} has a key of ${other}`);
      seen.set(key, `${kind} ${owner.name}`);
    }
  };
  for (const agent of policies.agents.values()) check(agent, 'agent', declared.agents.get(agent.name)?.place);
  for (const person of policies.people.values()) check(person, 'person', declared.people.get(person.name)?.place);
}

/** A token belongs to one agent: two that would both take it must tell each other apart by a claim. */
function checkOverlappingJwts({ declared, policies, report }: CrossCheckInput): void {
  const seen: { readonly name: string; readonly jwt: JwtSpec }[] = [];
  for (const { name, jwt } of policies.agents.values()) {
    const place = declared.agents.get(name)?.place;
    if (jwt === undefined || place === undefined) continue;
    for (const other of seen) {
      if (other.jwt.issuer !== jwt.issuer) continue;
      if (other.jwt.allowPrivate !== jwt.allowPrivate)
        report.addError(
          locateChild(place, 'jwt'),
          `allowPrivate of this issuer is not the same for agent ${other.name}`,
        );
      if (other.jwt.audience === jwt.audience && !hasConflictingClaims(other.jwt.claims, jwt.claims))
        report.addError(
          locateChild(place, 'jwt'),
          `agent ${other.name} would accept the same token: give one claim a different value in each`,
        );
    }
    seen.push({ name, jwt });
  }
}

function hasConflictingClaims(a: JwtSpec['claims'], b: JwtSpec['claims']): boolean {
  return Object.entries(a).some(([claim, value]) => Object.hasOwn(b, claim) && b[claim] !== value);
}

function checkRules(
  context: CrossCheckInput,
  { name, place, value }: DeclaredEntry<{ rules?: readonly object[] | undefined }>,
): void {
  const { policies, report } = context;
  const compiled = new Map(policies.agents.get(name)?.rules.map((rule) => [rule.id, rule]));
  const earlier: Rule[] = [];
  for (const index of (value?.rules ?? []).keys()) {
    const where = locateChild(place, 'rules', index);
    const rule = compiled.get(formatRuleId(name, index, where));
    if (rule === undefined) continue;
    checkRulePattern(context, rule, locateKey(where, rule.verdict));
    const above = earlier.find((other) => isShadowing(other, rule));
    if (above !== undefined)
      report.addWarning(locateKey(where, rule.verdict), `never reached: ${above.id} already allows all of it`);
    if (rule.approve !== undefined && rule.approve !== 'never')
      checkApprovers(context, rule, locateChild(where, 'approve'));
    earlier.push(rule);
  }
  if (value !== undefined && !value.rules?.length) {
    report.addWarning({ ...place, key: true }, `${name} has no rules: it may call nothing`);
  }
}

function isShadowing(other: Rule, rule: Rule): boolean {
  if (other.verdict !== 'allow' || rule.verdict !== 'allow' || other.when !== undefined) return false;
  if (other.effect !== undefined && other.effect !== rule.effect) return false;
  return other.pattern === rule.pattern || (!isGlob(rule.pattern) && other.covers(rule.pattern));
}

function checkRulePattern({ declared, policies, report }: CrossCheckInput, rule: Rule, place: SourceLocation): void {
  const { pattern, effect } = rule;
  if (isGlob(pattern)) {
    const known = [...declared.tools.keys(), ...Object.keys(BUILT_IN_TOOL_EFFECTS)];
    if (!known.some(rule.covers) && !hasMcpImports(policies)) report.addWarning(place, `${pattern} matches no tool`);
    return;
  }
  const tool = declared.tools.get(pattern);
  if (tool !== undefined) {
    const actual = tool.value === undefined ? effect : (tool.value.effect ?? 'write');
    if (effect !== undefined && effect !== actual)
      report.addError(place, `this rule can never match: ${pattern} is a ${actual}`);
    return;
  }
  if (pattern in BUILT_IN_TOOL_EFFECTS || canBeImported(policies, pattern)) return;
  const near = didYouMean(pattern, [...declared.tools.keys(), ...Object.keys(BUILT_IN_TOOL_EFFECTS)]);
  report.addError(place, `this rule can never match: there is no tool ${JSON.stringify(pattern)}${near}`);
}

function hasMcpImports(policies: CrossCheckInput['policies']): boolean {
  return [...policies.upstreams.values()].some((upstream) => upstream.import !== undefined);
}

/** Whether an mcp upstream's `import` could offer a tool of this name: only that server knows what it has. */
function canBeImported(policies: CrossCheckInput['policies'], name: string): boolean {
  return [...policies.upstreams.values()].some((upstream) => {
    if (upstream.import === undefined) return false;
    if (upstream.expose === 'bare') return compileGlob(upstream.import)(name);
    return name.startsWith(`${upstream.name}.`) && compileGlob(upstream.import)(name.slice(upstream.name.length + 1));
  });
}

function checkApprovers({ declared, policies, report }: CrossCheckInput, rule: Rule, place: SourceLocation): void {
  if (rule.approve === undefined || rule.approve === 'never') return;
  const { by, quorum } = rule.approve;
  const people = [...policies.people.values()];
  const groups = new Set([...declared.people.values()].flatMap((person) => person.value?.groups ?? []));
  let good = true;
  for (const [index, group] of by.entries()) {
    if (groups.has(group)) continue;
    good = false;
    report.addError(
      locateChild(place, 'by', index),
      `nobody is in the group ${JSON.stringify(group)}${didYouMean(group, groups)}`,
    );
  }
  const able = people
    .filter((person) => person.roles.includes('approver') || person.roles.includes('admin'))
    .filter((person) => by.length === 0 || person.groups.some((group) => by.includes(group)));
  if (!good || able.length >= quorum || [...declared.people.values()].some(({ value }) => value === undefined)) return;
  if (people.length === 0) report.addWarning(place, 'nobody can approve this: there are no people');
  else {
    const who = able.length === 0 ? 'nobody can' : `only ${formatList(able.map((person) => person.name))} can`;
    report.addError(place, `quorum ${quorum} can never be reached: ${who} approve this`);
  }
}

function warnUncallableTools({ declared, policies, report }: CrossCheckInput): void {
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
    if (!callable) report.addWarning({ ...place, key: true }, `no agent may call ${name}`);
  }
}
