import type { DemoKeys } from './secret-files.ts';

interface BannerFacts {
  readonly host: string;
  readonly port: number;
  readonly policiesDir: string;
  readonly dataDir: string;
  readonly isExternalDatabase: boolean;
}

/** The text that `npm start` prints: addresses and, with the demo, its keys and three commands to paste. */
export function formatBanner(facts: BannerFacts, keys: DemoKeys | undefined): string {
  const host = facts.host === '0.0.0.0' || facts.host === '::' ? '127.0.0.1' : facts.host;
  const url = `http://${host.includes(':') ? `[${host}]` : host}:${facts.port}`;
  const lines = [
    '',
    `  Oncegate    ${url}`,
    `  console     ${url}/${keys === undefined ? '' : '  sign in with the admin key'}`,
    `  policies    ${facts.policiesDir}`,
    `  ledger      ${facts.isExternalDatabase ? 'PostgreSQL at DATABASE_URL' : `PostgreSQL under ${facts.dataDir}`}`,
  ];
  if (keys !== undefined) {
    const auth = `-H "Authorization: Bearer ${keys.agentKey}"`;
    const json = '-H "Content-Type: application/json"';
    lines.push(
      `  agent key   ${keys.agentKey}`,
      `  admin key   ${keys.adminKey}`,
      '',
      '  Try it: the third command repeats the second, and gets the same answer.',
      '',
      `curl -sS ${url}/v1/tools ${auth}`,
      `curl -sS ${url}/v1/tools/payments.charge ${auth} ${json} -H "Idempotency-Key: order-1001" -d '{"amount":1200,"currency":"usd","card":"card_visa"}'`,
      `curl -sS ${url}/v1/tools/payments.charge ${auth} ${json} -H "Idempotency-Key: order-1001" -d '{"amount":1200,"currency":"usd","card":"card_visa"}'`,
    );
  }
  return [...lines, ''].join('\n');
}
