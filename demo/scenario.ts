import { type DemoAnswer, type DemoClient, DemoError } from './client.ts';
import type { TerminalPrinter } from './terminal-printer.ts';

/** What a scenario needs. Keys and names contain `runId`, so that the demo can run again. */
export interface ScenarioContext {
  readonly agent: DemoClient;
  /** Uses the key of `demo-admin`. */
  readonly person: DemoClient;
  readonly printer: TerminalPrinter;
  readonly runId: string;
}

export interface Scenario {
  readonly title: string;
  play(context: ScenarioContext): Promise<void>;
}

/** Counts the charges in the payments service itself, not in the answers of the gateway. */
export async function verifyChargeCount(
  agent: DemoClient,
  printer: TerminalPrinter,
  order: string,
  expected: 0 | 1,
): Promise<void> {
  const { charges } = await agent.read<{ charges: unknown[] }>('payments.list', { order });
  expect(charges.length === expected, `${expected} charge(s) for order ${order}`, `${charges.length}`);
  printer.printVerified(`The payments service has ${expected === 0 ? 'no charge' : 'one charge'} for this order.`);
}

export function expect(isTrue: boolean, expected: string, actual: string): void {
  if (!isTrue) throw new DemoError(`Expected ${expected}, but got: ${actual}`);
}

export function isProblem({ status, body }: DemoAnswer, expected: number, code: string): boolean {
  return status === expected && body.code === code;
}

export function readResultId({ body }: DemoAnswer): string {
  const result = body.result as { id?: string } | null | undefined;
  return result?.id ?? 'no result';
}
