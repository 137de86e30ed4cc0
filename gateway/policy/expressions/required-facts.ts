import type { HistoryQuery, RuleInputs } from '../../domain/calls/history.ts';
import type { Agent, Rule, Tool, Upstream } from '../../domain/policy.ts';
import { readDeclaredArguments } from '../compile/compile-input-schema.ts';
import { didYouMean, formatList } from '../faults.ts';
import { compileGlob } from '../glob.ts';

/** Collects the distinct queries of the expressions of a rule. */
export class FactCollector {
  readonly #history = new Map<string, HistoryQuery>();
  #taint = false;

  add(query: HistoryQuery | 'taint'): void {
    if (query === 'taint') this.#taint = true;
    else this.#history.set(query.text, query);
  }

  /** Undefined when there is no query, as in most rules. */
  collect(): RuleInputs | undefined {
    if (!this.#taint && this.#history.size === 0) return undefined;
    return { history: [...this.#history.values()], taint: this.#taint };
  }
}

const rulesWithFacts = new WeakMap<Agent, readonly Rule[]>();

/** The facts to read before a decision about this tool. Undefined when its rules need none, as for most tools. */
export function findRequiredFacts(agent: Agent, toolName: string): RuleInputs | undefined {
  let rules = rulesWithFacts.get(agent);
  if (rules === undefined) {
    rules = agent.rules.filter((rule) => rule.requiredFacts !== undefined);
    rulesWithFacts.set(agent, rules);
  }
  if (rules.length === 0) return undefined;
  const facts = new FactCollector();
  for (const { requiredFacts, covers } of rules) {
    if (requiredFacts === undefined || !covers(toolName)) continue;
    for (const query of requiredFacts.history) facts.add(query);
    if (requiredFacts.taint) facts.add('taint');
  }
  return facts.collect();
}

/** The compiled entries that a query may refer to. */
export interface CompiledTargets {
  readonly tools: ReadonlyMap<string, Tool>;
  readonly upstreams: ReadonlyMap<string, Upstream>;
}

/** Why the answer to a query would always be the same or unknown, as a sentence. Undefined when the query is useful. */
export function explainUselessQuery(query: HistoryQuery | 'taint', targets: CompiledTargets): string | undefined {
  // The tools of an imported server are known only at run time.
  const hasImports = [...targets.upstreams.values()].some((upstream) => upstream.import !== undefined);
  if (query === 'taint') {
    const isAnyUntrusted = [...targets.tools.values(), ...targets.upstreams.values()].some(
      (each) => each.untrusted === true,
    );
    return isAnyUntrusted
      ? undefined
      : 'tainted is always false, because no tool and no upstream has untrusted: true. Mark one, or remove the condition.';
  }
  const covers = compileGlob(query.glob);
  const covered = [...targets.tools.values()].filter(({ name }) => covers(name));
  if (covered.length === 0) {
    const near = didYouMean(query.glob, targets.tools.keys());
    return hasImports
      ? undefined
      : `history.${query.text} is always 0, because no tool matches ${JSON.stringify(query.glob)}.${near}`;
  }
  const unrecordedTool = covered.find(({ unrecorded }) => unrecorded === true);
  if (unrecordedTool !== undefined)
    return `The calls of ${unrecordedTool.name} cannot be counted, because it has record: false. Remove that, or count other tools.`;
  if (query.sum === undefined) return undefined;
  return explainRedactedSum(query.sum, covered) ?? explainUnknownSumArgument(query.sum, covered, hasImports);
}

/** A redacted argument is not stored in clear, so it cannot be summed. */
function explainRedactedSum(path: readonly string[], covered: readonly Tool[]): string | undefined {
  for (const { name, redact } of covered) {
    const found = redact.find(([root, ...rest]) => root === 'args' && rest.every((part, i) => overlaps(part, path[i])));
    if (found !== undefined)
      return `${path.join('.')} of ${name} cannot be summed, because ${name} redacts ${found.join('.')}. Sum another argument.`;
  }
  return undefined;
}

/** Whether two paths are equal at this part, or the summed path has ended. */
function overlaps(redacted: string, part: string | undefined): boolean {
  return part === undefined || redacted === '*' || redacted === part;
}

function explainUnknownSumArgument(
  [argument = '']: readonly string[],
  covered: readonly Tool[],
  hasImports: boolean,
): string | undefined {
  const names = new Set<string>();
  for (const { input } of covered) {
    const declared = readDeclaredArguments(input);
    if (declared === undefined || declared.names.has(argument)) return undefined;
    for (const name of declared.names) names.add(name);
  }
  if (hasImports) return undefined;
  const known = formatList(names) || 'none';
  return `None of the summed tools has an argument ${argument}.${didYouMean(argument, names)} Their arguments: ${known}.`;
}
