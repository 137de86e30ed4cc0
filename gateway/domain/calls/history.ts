/**
 * A question of a rule about the history of an agent. Deciding is pure: the answers are read before the decision. So a query
 * consists of literals, which are known when the policies are loaded.
 */
export interface HistoryQuery {
  /** The query as written: `count("*.delete_*", "10m")`. */
  readonly text: string;
  readonly glob: string;
  readonly windowMs: number;
  /** The argument to sum, as a path below `args`. Absent: calls are counted. */
  readonly sum?: readonly string[];
}

/** The inputs of a rule beside the call itself. */
export interface RuleInputs {
  readonly history: readonly HistoryQuery[];
  readonly taint: boolean;
}

/** Answers to history queries; `unknown` where the ledger cannot answer. CEL sees them as `history`. */
export class History {
  readonly #values: ReadonlyMap<string, number | 'unknown'>;

  constructor(answers: Iterable<readonly [query: string, answer: number | 'unknown']>) {
    this.#values = new Map(answers);
  }

  /** Undefined if the query was not read before the decision. Callers treat that like `unknown`. */
  get(query: string): number | 'unknown' | undefined {
    return this.#values.get(query);
  }

  toJson(): Record<string, number | 'unknown'> {
    return Object.fromEntries(this.#values);
  }
}

/** The name of a query. Equal queries of two rules have equal names. */
export function formatHistoryQuery(method: 'count' | 'sum', ...literals: readonly string[]): string {
  return `${method}(${literals.map((literal) => JSON.stringify(literal)).join(', ')})`;
}
