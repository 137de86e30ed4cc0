/**
 * Words of strangers. Whoever calls a tool whose results outsiders can write (`untrusted: true`) may obey what it reads, so
 * everything it does afterwards in the same run or saga is *tainted*, for ever: nothing makes an agent forget.
 *
 * What is done outside of runs cannot be told apart. It is tainted as soon as the agent has called such a tool anywhere; and
 * such a call outside of runs taints every run of the agent that is not finished, because any of them may go on with what was
 * read. Only a run that is begun afterwards is clean.
 */
export interface TaintScope {
  readonly of: 'agent' | 'run' | 'saga';
  /** The name of the agent, or the id of the run or saga. */
  readonly holder: string;
}

/** The first call by which something became tainted. */
export interface Taint {
  /** Null: what was read was a resource or prompt of an MCP server, which is no call. */
  readonly txn: string | null;
  readonly tool: string;
  /** ISO 8601. */
  readonly since: string;
}

/** Where a call is made. */
export interface CallOrigin {
  readonly agent: string;
  readonly saga: string | null;
  readonly run: string | null;
}

/** What a call at this place is tainted by: any of these. A run answers for its agent, a saga does not. */
export function listTaintSources({ agent, saga, run }: CallOrigin): TaintScope[] {
  const own: TaintScope = run === null ? { of: 'agent', holder: agent } : { of: 'run', holder: run };
  return saga === null ? [own] : [own, { of: 'saga', holder: saga }];
}

/** What an untrusted call at this place taints, beside the open runs of an agent that names none. */
export function listTaintTargets({ agent, saga, run }: CallOrigin): TaintScope[] {
  return [
    { of: 'agent', holder: agent },
    ...(run === null ? [] : [{ of: 'run', holder: run } as const]),
    ...(saga === null ? [] : [{ of: 'saga', holder: saga } as const]),
  ];
}
