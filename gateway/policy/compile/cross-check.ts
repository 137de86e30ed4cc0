import type { Json } from '../../domain/json.ts';
import type { Agent, JwtSpec, Person, Policies, Rule, Tool } from '../../domain/policy.ts';
import { BUILT_IN_TOOL_EFFECTS } from '../built-in-tools.ts';
import type { Declarations, DeclaredEntry } from '../declarations.ts';
import {
  type Diagnostics,
  type DocumentPath,
  didYouMean,
  formatList,
  locateChild,
  locateKey,
  type SourceLocation,
} from '../faults.ts';
import { compileGlob, isGlob } from '../glob.ts';
import type { ToolDeclaration } from '../policy-file-schema.ts';
import { checkBuiltArguments } from './check-built-arguments.ts';
import { formatRuleId } from './compile-agent.ts';
import { normalizePathTemplate } from './compile-request.ts';

export { BUILT_IN_TOOL_EFFECTS as BUILT_IN };

export const MAX_MODEL_NAME_LENGTH = 64;

/** The name of a tool as models see it, because model vendors refuse dots. */
export function toModelName(tool: string): string {
  return tool.replaceAll('.', '__');
}

/** Checks entries against one another: unknown names, colliding names, and rules and approvals that cannot work. */
export function crossCheck(
  declared: Declarations,
  policies: Omit<Policies, 'version' | 'files'>,
  diagnostics: Diagnostics,
): void {
  const context = { declared, policies, diagnostics };
  for (const tool of declared.tools.values()) checkToolReferences(context, tool);
  for (const upstream of declared.upstreams.values()) {
    if (upstream.name === 'oncegate')
      diagnostics.addError(
        { ...upstream.location, key: true },
        'The upstream name oncegate is reserved for the gateway itself. Choose another name.',
      );
  }
  checkModelNames(context);
  checkProxyTargets(context);
  checkDuplicateKeys(context);
  checkOverlappingJwts(context);
  for (const agent of declared.agents.values()) checkRules(context, agent);
  warnUncallableTools(context);
}

interface CrossCheckInput {
  readonly declared: Declarations;
  readonly policies: Omit<Policies, 'version' | 'files'>;
  readonly diagnostics: Diagnostics;
}

function checkToolReferences(
  { declared, policies, diagnostics }: CrossCheckInput,
  { name, location, value }: DeclaredEntry<ToolDeclaration>,
): void {
  if (name.startsWith('oncegate.'))
    diagnostics.addError(
      { ...location, key: true },
      'Tool names that begin with oncegate. are reserved for the gateway itself. Choose another name.',
    );
  if (value === undefined) return;
  const upstream = declared.upstreams.get(value.upstream);
  if (upstream === undefined) {
    const near = didYouMean(value.upstream, declared.upstreams.keys()) || ' Declare it in upstreams.';
    diagnostics.addError(
      locateChild(location, 'upstream'),
      `There is no upstream ${JSON.stringify(value.upstream)}.${near}`,
    );
  } else if (
    upstream.value?.adapter === 'mcp' &&
    upstream.value.expose !== 'bare' &&
    !name.startsWith(`${value.upstream}.`)
  ) {
    diagnostics.addError(
      { ...location, key: true },
      `A tool of the mcp upstream ${value.upstream} must be named ${value.upstream}.<name> (got ${name}).`,
    );
  }
  if (upstream?.value?.command !== undefined && value.once?.by === 'key' && value.once.header !== undefined) {
    diagnostics.addError(
      locateChild(location, 'once', 'header'),
      'An upstream with a command receives no headers, so the key would not arrive. Use field.',
    );
  }
  const checkReference = (tool: string | undefined, toolLocation: SourceLocation, mustRead: boolean): void => {
    if (tool === undefined) return;
    const target = declared.tools.get(tool);
    if (target === undefined) {
      if (!mustRead && canBeImported(policies, tool)) return;
      const near = didYouMean(tool, declared.tools.keys()) || ' Declare it in tools.';
      diagnostics.addError(toolLocation, `There is no tool ${JSON.stringify(tool)}.${near}`);
    } else if (mustRead && target.value !== undefined && target.value.effect !== 'read') {
      diagnostics.addError(
        toolLocation,
        `${tool} must be a read. Write effect: read in its contract, or name another tool.`,
      );
    } else if (mustRead && (target.value?.locks?.length ?? 0) > 0) {
      diagnostics.addError(
        toolLocation,
        `${tool} must not have locks, because a probe or observation cannot wait for them. Name a tool without locks.`,
      );
    } else if (!mustRead && target.value?.effect === 'read') {
      diagnostics.addError(toolLocation, `${tool} must be a write, because a read undoes nothing. Name another tool.`);
    }
  };
  checkReference(value.undo?.tool, locateChild(location, 'undo', 'tool'), false);
  checkReference(value.observe?.tool, locateChild(location, 'observe', 'tool'), true);
  if (value.once?.by === 'probe')
    checkReference(value.once.probe.tool, locateChild(location, 'once', 'probe', 'tool'), true);
  const built: readonly BuiltArguments[] = [
    { tool: value.undo?.tool, args: value.undo?.args, path: ['undo', 'args'] },
    { tool: value.observe?.tool, args: value.observe?.args, path: ['observe', 'args'] },
    ...(value.once?.by === 'probe'
      ? [{ tool: value.once.probe.tool, args: value.once.probe.args, path: ['once', 'probe', 'args'] }]
      : []),
  ];
  const callerInput = policies.tools.get(name)?.input ?? {};
  for (const { tool, args = {}, path } of built) {
    const target = tool === undefined ? undefined : policies.tools.get(tool);
    if (target === undefined) continue;
    for (const fault of checkBuiltArguments(args as Json, target, callerInput))
      diagnostics.addError(
        { ...locateChild(location, ...path, ...fault.path), key: fault.key === true },
        fault.message,
      );
  }
}

/** The arguments that a tool builds for another tool, and their place in its declaration. */
interface BuiltArguments {
  readonly tool: string | undefined;
  readonly args: unknown;
  readonly path: DocumentPath;
}

/** The name that models see must be unique and at most 64 characters long. */
function checkModelNames({ declared, diagnostics }: CrossCheckInput): void {
  const seen = new Map<string, string>();
  for (const { name, location } of declared.tools.values()) {
    const model = toModelName(name);
    const other = seen.get(model);
    if (other !== undefined)
      diagnostics.addError(
        { ...location, key: true },
        `Models would see both ${name} and ${other} as ${model}. Rename one of them.`,
      );
    else if (model.length > MAX_MODEL_NAME_LENGTH) {
      diagnostics.addError(
        { ...location, key: true },
        `The name that models see must have at most ${MAX_MODEL_NAME_LENGTH} characters (got ${model.length}: ${model}).`,
      );
    }
    seen.set(model, name);
  }
}

/** Several tools may have one method and path, as of a GraphQL service. At most one of them takes the requests of the proxy route. */
function checkProxyTargets({ declared, policies, diagnostics }: CrossCheckInput): void {
  const seen = new Map<string, Tool>();
  for (const tool of policies.tools.values()) {
    if (tool.request === undefined || tool.isProxyTarget === undefined) continue;
    const shape = `${tool.request.method} ${normalizePathTemplate(tool.request.pathTemplate)}`;
    const other = seen.get(`${tool.upstream} ${shape}`);
    const location = declared.tools.get(tool.name)?.location;
    if (other !== undefined && location !== undefined) {
      diagnostics.addError(
        locateKey(location, 'proxy'),
        `proxy: true must be in only one tool with ${shape} of ${tool.upstream}, and ${other.name} has it. Remove one of them.`,
      );
    }
    seen.set(`${tool.upstream} ${shape}`, other ?? tool);
  }
}

function checkDuplicateKeys({ declared, policies, diagnostics }: CrossCheckInput): void {
  const seen = new Map<string, string>();
  const check = (owner: Agent | Person, kind: string, location: SourceLocation | undefined): void => {
    for (const key of new Set(owner.keys.map((digest) => digest.toString('hex')))) {
      const other = seen.get(key);
      if (other !== undefined && location !== undefined)
        diagnostics.addError(
          locateChild(location, 'keys'),
          `The ${kind} ${owner.name} has the same key as the ${other}. Give each a key of its own.`,
        );
      seen.set(key, `${kind} ${owner.name}`);
    }
  };
  for (const agent of policies.agents.values()) check(agent, 'agent', declared.agents.get(agent.name)?.location);
  for (const person of policies.people.values()) check(person, 'person', declared.people.get(person.name)?.location);
}

/** A token must belong to one agent, so two agents with one issuer and audience must differ in a claim. */
function checkOverlappingJwts({ declared, policies, diagnostics }: CrossCheckInput): void {
  const seen: { readonly name: string; readonly jwt: JwtSpec }[] = [];
  for (const { name, jwt } of policies.agents.values()) {
    const location = declared.agents.get(name)?.location;
    if (jwt === undefined || location === undefined) continue;
    for (const other of seen) {
      if (other.jwt.issuer !== jwt.issuer) continue;
      if (other.jwt.allowPrivate !== jwt.allowPrivate)
        diagnostics.addError(
          locateChild(location, 'jwt'),
          `allowPrivate must be the same for all agents with this issuer. Agent ${other.name} has allowPrivate: ${other.jwt.allowPrivate}.`,
        );
      if (other.jwt.audience === jwt.audience && !hasConflictingClaims(other.jwt.claims, jwt.claims))
        diagnostics.addError(
          locateChild(location, 'jwt'),
          `Agent ${other.name} accepts the same tokens. Give the two agents different values of one claim.`,
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
  { name, location, value }: DeclaredEntry<{ rules?: readonly object[] | undefined }>,
): void {
  const { policies, diagnostics } = context;
  const compiled = new Map(policies.agents.get(name)?.rules.map((rule) => [rule.id, rule]));
  const earlier: Rule[] = [];
  for (const index of (value?.rules ?? []).keys()) {
    const ruleLocation = locateChild(location, 'rules', index);
    const rule = compiled.get(formatRuleId(name, index, ruleLocation));
    if (rule === undefined) continue;
    checkRulePattern(context, rule, locateKey(ruleLocation, rule.verdict));
    const shadowing = earlier.find((other) => isShadowing(other, rule));
    if (shadowing !== undefined)
      diagnostics.addWarning(
        locateKey(ruleLocation, rule.verdict),
        `This rule never decides, because ${shadowing.id} allows everything that it allows. Remove it, or move it up.`,
      );
    if (rule.approve !== undefined && rule.approve !== 'never')
      checkApprovers(context, rule, locateChild(ruleLocation, 'approve'));
    earlier.push(rule);
  }
  if (value !== undefined && !value.rules?.length) {
    diagnostics.addWarning(
      { ...location, key: true },
      `Agent ${name} has no rules and may call nothing. Add an allow rule.`,
    );
  }
}

function isShadowing(other: Rule, rule: Rule): boolean {
  if (other.verdict !== 'allow' || rule.verdict !== 'allow' || other.when !== undefined) return false;
  if (other.effect !== undefined && other.effect !== rule.effect) return false;
  return other.pattern === rule.pattern || (!isGlob(rule.pattern) && other.covers(rule.pattern));
}

function checkRulePattern(
  { declared, policies, diagnostics }: CrossCheckInput,
  rule: Rule,
  location: SourceLocation,
): void {
  const { pattern, effect } = rule;
  if (isGlob(pattern)) {
    const known = [...declared.tools.keys(), ...Object.keys(BUILT_IN_TOOL_EFFECTS)];
    if (!known.some(rule.covers) && !hasMcpImports(policies))
      diagnostics.addWarning(location, `The pattern ${pattern} matches no tool.`);
    return;
  }
  const tool = declared.tools.get(pattern);
  if (tool !== undefined) {
    const actual = tool.value === undefined ? effect : (tool.value.effect ?? 'write');
    if (effect !== undefined && effect !== actual)
      diagnostics.addError(
        location,
        `This rule never matches, because it is for ${effect}s and ${pattern} is a ${actual}.`,
      );
    return;
  }
  if (pattern in BUILT_IN_TOOL_EFFECTS || canBeImported(policies, pattern)) return;
  const near = didYouMean(pattern, [...declared.tools.keys(), ...Object.keys(BUILT_IN_TOOL_EFFECTS)]);
  diagnostics.addError(
    location,
    `This rule never matches, because there is no tool ${JSON.stringify(pattern)}.${near}`,
  );
}

function hasMcpImports(policies: CrossCheckInput['policies']): boolean {
  return [...policies.upstreams.values()].some((upstream) => upstream.import !== undefined);
}

/** Whether `import` of an mcp upstream could offer a tool of this name. Only the server knows its tools. */
function canBeImported(policies: CrossCheckInput['policies'], name: string): boolean {
  return [...policies.upstreams.values()].some((upstream) => {
    if (upstream.import === undefined) return false;
    if (upstream.expose === 'bare') return compileGlob(upstream.import)(name);
    return name.startsWith(`${upstream.name}.`) && compileGlob(upstream.import)(name.slice(upstream.name.length + 1));
  });
}

function checkApprovers(
  { declared, policies, diagnostics }: CrossCheckInput,
  rule: Rule,
  location: SourceLocation,
): void {
  if (rule.approve === undefined || rule.approve === 'never') return;
  const { by, quorum } = rule.approve;
  const people = [...policies.people.values()];
  const groups = new Set([...declared.people.values()].flatMap((person) => person.value?.groups ?? []));
  let areGroupsKnown = true;
  for (const [index, group] of by.entries()) {
    if (groups.has(group)) continue;
    areGroupsKnown = false;
    diagnostics.addError(
      locateChild(location, 'by', index),
      `No person is in the group ${JSON.stringify(group)}.${didYouMean(group, groups)}`,
    );
  }
  const approvers = people
    .filter((person) => person.roles.includes('approver') || person.roles.includes('admin'))
    .filter((person) => by.length === 0 || person.groups.some((group) => by.includes(group)));
  if (
    !areGroupsKnown ||
    approvers.length >= quorum ||
    [...declared.people.values()].some(({ value }) => value === undefined)
  )
    return;
  if (people.length === 0)
    diagnostics.addWarning(
      location,
      'Nobody can approve this, because no people are declared. Add an approver in people.',
    );
  else {
    const names = formatList(approvers.map((person) => person.name));
    const listing = approvers.length === 0 ? 'nobody' : `only ${names}`;
    diagnostics.addError(location, `quorum ${quorum} cannot be reached, because ${listing} can approve this.`);
  }
}

function warnUncallableTools({ declared, policies, diagnostics }: CrossCheckInput): void {
  const referenced = new Set<string>();
  for (const tool of policies.tools.values()) {
    if (tool.undo.tool !== undefined) referenced.add(tool.undo.tool);
    if (tool.observe !== undefined) referenced.add(tool.observe.tool);
    if (tool.once.by === 'probe') referenced.add(tool.once.tool);
  }
  const rules = [...policies.agents.values()].flatMap((agent) => agent.rules);
  for (const { name, location, value, imported } of declared.tools.values()) {
    if (referenced.has(name) || value === undefined || imported) continue;
    const effect = value.effect ?? 'write';
    const isCallable = rules.some(
      (rule) => rule.verdict === 'allow' && rule.covers(name) && (rule.effect ?? effect) === effect,
    );
    if (!isCallable)
      diagnostics.addWarning(
        { ...location, key: true },
        `No agent may call ${name}. Add an allow rule, or remove the tool.`,
      );
  }
}
