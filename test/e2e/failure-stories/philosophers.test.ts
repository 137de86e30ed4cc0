// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates

import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { AGENT_KEY, testerYaml } from '../../support/gateway.ts';
import { readBody, useHttpServer } from '../../support/http-server.ts';
import { useReplicas } from '../../support/use-gateway.ts';
import { AgentProcess } from './agent-process.ts';

const ROUNDS = 200;

/** A service that notices when two neighbours eat at once, or when a fork gets an older lock token than before. */
class Table {
  readonly eaten: string[] = [];
  readonly clashes: string[] = [];
  readonly #eating = new Set<number>();
  readonly #newest = new Map<string, number>();

  async serve(me: number, round: number, forks: readonly string[], token: number): Promise<void> {
    for (const neighbour of [(me + 1) % 5, (me + 4) % 5])
      if (this.#eating.has(neighbour)) this.clashes.push(`${me} eats beside ${neighbour} in round ${round}`);
    for (const fork of forks) {
      if (token <= (this.#newest.get(fork) ?? 0)) this.clashes.push(`${me} comes to fork ${fork} with ${token}`);
      this.#newest.set(fork, token);
    }
    this.#eating.add(me);
    await sleep(4);
    this.#eating.delete(me);
    this.eaten.push(`${me}-${round}`);
  }
}

const table = new Table();

const server = useHttpServer(async (request, response) => {
  const { me, round, forks } = JSON.parse(await readBody(request)) as { me: number; round: number; forks: string[] };
  await table.serve(me, round, forks, Number(request.headers['oncegate-lock-token']));
  response.setHeader('content-type', 'application/json').end('{"full":true}');
});
const { database, one, two } = useReplicas({
  upstream: 'none',
  policies: () => `
upstreams:
  table: { adapter: http, url: "${server.url}", allowPrivate: true, timeout: 20s, breaker: { minimum: 100000 } }
tools:
  table.eat:
    upstream: table
    input: { type: object, properties: { me: { type: integer }, round: { type: integer }, forks: { type: array, items: { type: string } } }, required: [me, round, forks] }
    once: { by: none }
    locks: ["fork/\${args.forks}"]
${testerYaml('[{ allow: table.eat, approve: never }]')}`,
});

/** Restarts one philosopher until it has eaten in all rounds. Returns how often it died. */
async function runPhilosopher(me: number): Promise<number> {
  for (let round = 0, deaths = 0; ; deaths += 1) {
    const gateway = (me + deaths) % 2 === 0 ? one : two;
    const philosopher = new AgentProcess('./agents/philosopher.mjs', [
      gateway.url,
      AGENT_KEY,
      `${me}`,
      `${round}`,
      `${ROUNDS}`,
    ]);
    const end = await philosopher.waitForExit();
    round += philosopher.lines.length;
    if (round === ROUNDS) return deaths;
    expect(end).toBe('SIGKILL');
  }
}

it('five philosophers on two replicas eat 200 times each, die in every fifth round, and never eat beside a neighbour who eats', async () => {
  const deaths = await Promise.all([0, 1, 2, 3, 4].map(runPhilosopher));
  expect(deaths.every((times) => times >= ROUNDS / 5 - 1)).toBe(true);
  expect(table.clashes).toEqual([]);
  expect(table.eaten).toHaveLength(5 * ROUNDS);
  expect(new Set(table.eaten).size).toBe(5 * ROUNDS);
  expect(await database.query('select shown from locks')).toEqual([]);
}, 480_000);
