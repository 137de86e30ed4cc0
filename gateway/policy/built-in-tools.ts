/** The gateway's own tools. Rules allow and deny them like any other tool. */
export const BUILT_IN_TOOL_EFFECTS: Readonly<Record<string, 'read' | 'write'>> = {
  'oncegate.begin_saga': 'write',
  'oncegate.commit_saga': 'write',
  'oncegate.rollback_saga': 'write',
  'oncegate.get_call': 'read',
  'oncegate.list_calls': 'read',
};
