import type { HistoryQuery, RuleInputs } from '../../domain/calls/history.ts';
import type { Agent, Rule, Tool, Upstream } from '../../domain/policy.ts';
import { readDeclaredArguments } from '../compile/compile-input-schema.ts';
import { didYouMean, formatList } from '../faults.ts';
import { compileGlob } from '../glob.ts';

/** Gathers what the expressions of one rule ask, each question once. */
export class FactCollector {
  readonly #history = new Map<string, HistoryQuery>();
  #taint = false;

  add(asked: HistoryQuery | 'taint'): void {
    if (asked === 'taint') this.#taint = true;
    else this.#history.set(asked.text, asked);
  }

  /** Undefined: nothing, as of most rules. */
  collect(): RuleInputs | undefined {
    if (!this.#taint && this.#history.size === 0) return undefined;
    return { history: [...this.#history.values()], taint: this.#taint };
  }
}

const rulesWithFacts = new WeakMap<Agent, readonly Rule[]>();

/** What must be read before it can be decided about this tool; undefined, as of most tools: nothing. */
export function findRequiredFacts(agent: Agent, toolName: string): RuleInputs | undefined {
  let asking = rulesWithFacts.get(agent);
  if (asking === undefined) {
    asking = agent.rules.filter((rule) => rule.asks !== undefined);
    rulesWithFacts.set(agent, asking);
  }
  if (asking.length === 0) return undefined;
  const gathered = new FactCollector();
  for (const { asks, covers } of asking) {
    if (asks === undefined || !covers(toolName)) continue;
    for (const question of asks.history) gathered.add(question);
    if (asks.taint) gathered.add('taint');
  }
  return gathered.collect();
}

/** What can be asked about. */
export interface CompiledTargets {
  readonly tools: ReadonlyMap<string, Tool>;
  readonly upstreams: ReadonlyMap<string, Upstream>;
}

/** Why a question would always have the same answer, or one that nobody can know; undefined: it is a good one. */
export function explainUselessQuery(asked: HistoryQuery | 'taint', world: CompiledTargets): string | undefined {
  // Which tools a server brings in is known only when it was asked.
  const imports = [...world.upstreams.values()].some((upstream) => upstream.import !== undefined);
  if (asked === 'taint') {
    const untrusted = [...world.tools.values(), ...world.upstreams.values()].some((each) => each.untrusted === true);
    return untrusted ? undefined : 'nothing is ever tainted: no tool and no upstream has untrusted: true';
  }
  const covers = compileGlob(asked.glob);
  const covered = [...world.tools.values()].filter(({ name }) => covers(name));
  if (covered.length === 0) {
    const near = didYouMean(asked.glob, world.tools.keys());
    return imports ? undefined : `history.${asked.text} is always 0: no tool is named like ${asked.glob}${near}`;
  }
  const unseen = covered.find(({ unrecorded }) => unrecorded === true);
  if (unseen !== undefined) return `${unseen.name} has record: false: what is not recorded cannot be counted`;
  return asked.sum === undefined
    ? undefined
    : (explainRedactedSum(asked.sum, covered) ?? explainUnknownSumArgument(asked.sum, covered, imports));
}

/** What is redacted is nowhere in clear, so nobody can add it up. */
function explainRedactedSum(path: readonly string[], covered: readonly Tool[]): string | undefined {
  for (const { name, redact } of covered) {
    const found = redact.find(([root, ...rest]) => root === 'args' && rest.every((part, i) => overlaps(part, path[i])));
    if (found !== undefined) return `${name} redacts ${found.join('.')}: what is not kept in clear cannot be added up`;
  }
  return undefined;
}

/** One path ends where the other goes on, or they are the same so far. */
function overlaps(redacted: string, part: string | undefined): boolean {
  return part === undefined || redacted === '*' || redacted === part;
}

function explainUnknownSumArgument(
  [argument = '']: readonly string[],
  covered: readonly Tool[],
  imports: boolean,
): string | undefined {
  const names = new Set<string>();
  for (const { input } of covered) {
    const declared = readDeclaredArguments(input);
    if (declared === undefined || declared.names.has(argument)) return undefined;
    for (const name of declared.names) names.add(name);
  }
  if (imports) return undefined;
  return `no tool that is added up has an argument ${argument} (there are: ${formatList(names) || 'none'})${didYouMean(argument, names)}`;
}
