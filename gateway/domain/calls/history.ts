/**
 * What rules may ask about an agent's past. Deciding is pure: whatever a rule asks is read before it decides, so a question is
 * written in literals and known when the policies are loaded.
 */
export interface HistoryQuery {
  /** As it was asked: `count("*.delete_*", "10m")`. */
  readonly text: string;
  readonly glob: string;
  readonly windowMs: number;
  /** The argument whose values are added up, as a path below `args`; absent: calls are counted. */
  readonly sum?: readonly string[];
}

/** What a rule must know beside the call itself. */
export interface RuleInputs {
  readonly history: readonly HistoryQuery[];
  readonly taint: boolean;
}

/** The answers to some questions; `unknown` where the ledger cannot tell. Seen by CEL as `history`. */
export class History {
  readonly #values: ReadonlyMap<string, number | 'unknown'>;

  constructor(answers: Iterable<readonly [question: string, answer: number | 'unknown']>) {
    this.#values = new Map(answers);
  }

  /** Undefined: nobody asked it in time, which is as good as not knowing. */
  get(question: string): number | 'unknown' | undefined {
    return this.#values.get(question);
  }

  toJson(): Record<string, number | 'unknown'> {
    return Object.fromEntries(this.#values);
  }
}

/** How a question is named: the same for two rules that ask the same. */
export function formatHistoryQuery(method: 'count' | 'sum', ...literals: readonly string[]): string {
  return `${method}(${literals.map((literal) => JSON.stringify(literal)).join(', ')})`;
}
