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
 * So many requests, so many at once, over kept connections; every answer must be a 200. Only whoever counts them in `refused` asks
 * again, with the same key, after a 503.
 */
export async function sendLoad(
  url: string,
  total: number,
  atOnce: number,
  shot: (i: number) => RequestSpec,
  refused?: { times: number },
): Promise<Sample> {
  const pool = new Pool(url, { connections: atOnce, pipelining: 1 });
  const times: number[] = [];
  let next = 0;
  const started = performance.now();
  const worker = async () => {
    for (let i = next++; i < total; i = next++) {
      const { path, headers, body } = shot(i);
      const asked = performance.now();
      const ask = async () => {
        const sent = { 'content-type': 'application/json', ...headers };
        const answered = await pool.request({ path, method: 'POST', headers: sent, body });
        return { statusCode: answered.statusCode, text: await answered.body.text() };
      };
      let answer = await ask();
      for (; answer.statusCode === 503 && refused !== undefined; answer = await ask()) refused.times += 1;
      const { text } = answer;
      if (answer.statusCode !== 200) throw new Error(`${answer.statusCode} ${text.slice(0, 300)}`);
      times.push(performance.now() - asked);
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
