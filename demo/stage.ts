import { type Answer, type Client, Surprise } from './client.ts';
import type { Narrator } from './narrator.ts';

/** What a story is told with. Names that hold `run` are new each time, so that the stories can be told again. */
export interface Stage {
  readonly agent: Client;
  /** Holds the key of `demo-admin`. */
  readonly person: Client;
  readonly narrator: Narrator;
  readonly run: string;
}

export interface Story {
  readonly title: string;
  tell(stage: Stage): Promise<void>;
}

/** Not what the gateway says but what the payments service has. */
export async function provesCharges(agent: Client, narrator: Narrator, order: string, wanted: 0 | 1): Promise<void> {
  const { charges } = await agent.read<{ charges: unknown[] }>('payments.list', { order });
  expect(charges.length === wanted, `${wanted} charge(s) for order ${order}`, `${charges.length}`);
  narrator.proves(`The payments service has ${wanted === 0 ? 'no charge' : 'one charge'} for this order.`);
}

export function expect(truth: boolean, wanted: string, got: string): void {
  if (!truth) throw new Surprise(`Expected ${wanted}, but got: ${got}`);
}

export function isProblem({ status, body }: Answer, wanted: number, code: string): boolean {
  return status === wanted && body.code === code;
}

export function idOf({ body }: Answer): string {
  const result = body.result as { id?: string } | null | undefined;
  return result?.id ?? 'no result';
}
