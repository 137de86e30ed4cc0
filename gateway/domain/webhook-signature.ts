import { createHmac, timingSafeEqual } from 'node:crypto';

/** Signs the body of a webhook: `t=<unix seconds>,v1=<hex>`, an HMAC-SHA-256 over the time, a dot and the body. */
export function signBody(secret: string, body: string, seconds = Math.floor(Date.now() / 1000)): string {
  return `t=${seconds},v1=${computeHmac(secret, seconds, body).toString('hex')}`;
}

/** Whether the signature matches the secret and the body. Does not check the age of the signature. */
export function isSignatureValid(secret: string, body: string, signature: unknown): boolean {
  const [, seconds, hex] = /^t=(\d{1,12}),v1=([0-9a-f]{64})$/.exec(String(signature)) ?? [];
  if (seconds === undefined || hex === undefined) return false;
  return timingSafeEqual(Buffer.from(hex, 'hex'), computeHmac(secret, Number(seconds), body));
}

function computeHmac(secret: string, seconds: number, body: string): Buffer {
  return createHmac('sha256', secret).update(`${seconds}.${body}`).digest();
}
