import { type DemoAnswer, type DemoClient, DemoError } from './client.ts';
import type { TerminalPrinter } from './narrator.ts';

/** What a story is told with. Names that hold `run` are new each time, so that the stories can be told again. */
export interface ScenarioContext {
  readonly agent: DemoClient;
  /** Holds the key of `demo-admin`. */
  readonly person: DemoClient;
  readonly narrator: TerminalPrinter;
  readonly run: string;
}

export interface Scenario {
  readonly title: string;
  tell(stage: ScenarioContext): Promise<void>;
}

/** Not what the gateway says but what the payments service has. */
export async function verifyChargeCount(
  agent: DemoClient,
  narrator: TerminalPrinter,
  order: string,
  wanted: 0 | 1,
): Promise<void> {
  const { charges } = await agent.read<{ charges: unknown[] }>('payments.list', { order });
  expect(charges.length === wanted, `${wanted} charge(s) for order ${order}`, `${charges.length}`);
  narrator.printVerified(`The payments service has ${wanted === 0 ? 'no charge' : 'one charge'} for this order.`);
}

export function expect(truth: boolean, wanted: string, got: string): void {
  if (!truth) throw new DemoError(`Expected ${wanted}, but got: ${got}`);
}

export function isProblem({ status, body }: DemoAnswer, wanted: number, code: string): boolean {
  return status === wanted && body.code === code;
}

export function readResultId({ body }: DemoAnswer): string {
  const result = body.result as { id?: string } | null | undefined;
  return result?.id ?? 'no result';
}
