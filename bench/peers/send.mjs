// The step of every peer: sends the arguments with the key, over kept connections.
import { Pool } from 'undici';

const upstream = new URL(process.env.UPSTREAM);
const pool = new Pool(upstream.origin, { connections: 64, pipelining: 1 });

export async function send(args, key) {
  const { statusCode, body } = await pool.request({
    path: upstream.pathname,
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': key },
    body: JSON.stringify(args),
  });
  const answer = await body.json();
  if (statusCode !== 200) throw new Error(`The upstream answered ${statusCode}.`);
  return answer;
}
