import { createHmac, timingSafeEqual } from 'node:crypto';

/** `t=<unix seconds>,v1=<hex>`: HMAC-SHA-256 over the time, a dot and the bytes of the body. Webhooks are signed with it. */
export function signBody(secret: string, body: string, seconds = Math.floor(Date.now() / 1000)): string {
  return `t=${seconds},v1=${computeHmac(secret, seconds, body).toString('hex')}`;
}

/** Whether somebody with this secret signed this body. How long ago is for the reader to judge. */
export function isSignatureValid(secret: string, body: string, signature: unknown): boolean {
  const [, seconds, hex] = /^t=(\d{1,12}),v1=([0-9a-f]{64})$/.exec(String(signature)) ?? [];
  if (seconds === undefined || hex === undefined) return false;
  return timingSafeEqual(Buffer.from(hex, 'hex'), computeHmac(secret, Number(seconds), body));
}

function computeHmac(secret: string, seconds: number, body: string): Buffer {
  return createHmac('sha256', secret).update(`${seconds}.${body}`).digest();
}
