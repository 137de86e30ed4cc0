import type { DemoKeys } from './secret-files.ts';

interface Shown {
  readonly host: string;
  readonly port: number;
  readonly policiesDir: string;
  readonly dataDir: string;
  readonly external: boolean;
}

/** What a person reads first: where it listens, whose keys there are, and three lines to paste. */
export function banner(shown: Shown, keys: DemoKeys | undefined): string {
  const host = shown.host === '0.0.0.0' || shown.host === '::' ? '127.0.0.1' : shown.host;
  const url = `http://${host.includes(':') ? `[${host}]` : host}:${shown.port}`;
  const lines = [
    '',
    `  Oncegate    ${url}`,
    `  console     ${url}/${keys === undefined ? '' : '  sign in with the admin key'}`,
    `  policies    ${shown.policiesDir}`,
    `  ledger      ${shown.external ? 'PostgreSQL at DATABASE_URL' : `PostgreSQL under ${shown.dataDir}`}`,
  ];
  if (keys !== undefined) {
    const auth = `-H "Authorization: Bearer ${keys.agentKey}"`;
    const json = '-H "Content-Type: application/json"';
    lines.push(
      `  agent key   ${keys.agentKey}`,
      `  admin key   ${keys.adminKey}`,
      '',
      '  Try it. The second line repeats the first: one charge, the same answer.',
      '',
      `curl -sS ${url}/v1/tools ${auth}`,
      `curl -sS ${url}/v1/tools/payments.charge ${auth} ${json} -H "Idempotency-Key: order-1001" -d '{"amount":1200,"currency":"usd","card":"card_visa"}'`,
      `curl -sS ${url}/v1/tools/payments.charge ${auth} ${json} -H "Idempotency-Key: order-1001" -d '{"amount":1200,"currency":"usd","card":"card_visa"}'`,
    );
  }
  return [...lines, ''].join('\n');
}
