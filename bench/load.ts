import { Pool } from 'undici';

export interface Sample {
  readonly perSecond: number;
  readonly p50: number;
  readonly p99: number;
}

export interface RequestSpec {
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/**
 * Sends `total` requests, `atOnce` of them in flight, over kept connections. Every answer must be a 200. With `unavailable`, a
 * request that got a 503 is repeated with the same key and counted there.
 */
export async function sendLoad(
  url: string,
  total: number,
  atOnce: number,
  buildRequest: (i: number) => RequestSpec,
  unavailable?: { count: number },
): Promise<Sample> {
  const pool = new Pool(url, { connections: atOnce, pipelining: 1 });
  const times: number[] = [];
  let next = 0;
  const started = performance.now();
  const worker = async () => {
    for (let i = next++; i < total; i = next++) {
      const { path, headers, body } = buildRequest(i);
      const startedAt = performance.now();
      const send = async () => {
        const allHeaders = { 'content-type': 'application/json', ...headers };
        const response = await pool.request({ path, method: 'POST', headers: allHeaders, body });
        return { statusCode: response.statusCode, text: await response.body.text() };
      };
      let answer = await send();
      for (; answer.statusCode === 503 && unavailable !== undefined; answer = await send()) unavailable.count += 1;
      const { text } = answer;
      if (answer.statusCode !== 200) throw new Error(`${answer.statusCode} ${text.slice(0, 300)}`);
      times.push(performance.now() - startedAt);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
  const seconds = (performance.now() - started) / 1000;
  await pool.close();
  return summarizeSample(times, total / seconds);
}

export function summarizeSample(milliseconds: readonly number[], perSecond: number): Sample {
  const times = [...milliseconds].sort((a, b) => a - b);
  const at = (share: number) => times[Math.min(times.length - 1, Math.floor(times.length * share))] ?? 0;
  return { perSecond, p50: at(0.5), p99: at(0.99) };
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}
