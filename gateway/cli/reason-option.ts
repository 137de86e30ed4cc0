import { type Invocation, type Option, UsageError } from './verb.ts';

/** The audit log stores the reason of every action of a person. */
export const REASON_OPTION: Option = { value: 'TEXT', required: true, help: 'why; the audit log keeps it' };

export function readReason({ text }: Pick<Invocation, 'text'>): string {
  const reason = text('reason')?.trim() ?? '';
  if (reason === '') throw new UsageError('--reason must not be empty');
  return reason;
}
