/**
 * Taint marks agents that have read untrusted content. An agent that calls a tool with `untrusted: true` may obey what it reads,
 * so all its later work in the same run or saga is tainted. Taint is permanent, because an agent cannot unread content.
 *
 * Tasks outside runs cannot be told apart, so every call outside a run is tainted once the agent calls an untrusted tool. An
 * untrusted call outside a run also taints every open run of the agent, because any of them may use the content. A later run
 * starts clean.
 */
export interface TaintScope {
  readonly of: 'agent' | 'run' | 'saga';
  /** The name of the agent, or the id of the run or saga. */
  readonly holder: string;
}

/** The first read that tainted a scope. */
export interface Taint {
  /** Null if the content was a resource or prompt of an MCP server, which is not a call. */
  readonly txn: string | null;
  readonly tool: string;
  /** ISO 8601. */
  readonly since: string;
}

/** The agent, saga and run of a call. */
export interface CallOrigin {
  readonly agent: string;
  readonly saga: string | null;
  readonly run: string | null;
}

/** Lists the scopes that make a call tainted: its run, or its agent if it has no run; and its saga, if it has one. */
export function listTaintSources({ agent, saga, run }: CallOrigin): TaintScope[] {
  const own: TaintScope = run === null ? { of: 'agent', holder: agent } : { of: 'run', holder: run };
  return saga === null ? [own] : [own, { of: 'saga', holder: saga }];
}

/** The scopes that an untrusted call taints. Outside a run, it also taints the open runs of the agent. */
export function listTaintTargets({ agent, saga, run }: CallOrigin): TaintScope[] {
  return [
    { of: 'agent', holder: agent },
    ...(run === null ? [] : [{ of: 'run', holder: run } as const]),
    ...(saga === null ? [] : [{ of: 'saga', holder: saga } as const]),
  ];
}
