import { type Invocation, type Option, UsageError } from './verb.ts';

/** Every action of a person is kept with its reason. */
export const REASON: Option = { value: 'TEXT', required: true, help: 'why; it is kept with what you do' };

export function reasonOf({ text }: Pick<Invocation, 'text'>): string {
  const reason = text('reason')?.trim() ?? '';
  if (reason === '') throw new UsageError('--reason is empty');
  return reason;
}
