/**
 * An agent that closes tickets while its twin closes the same tickets through another gateway. It sends no key, and repeats
 * each call until it gets a result.
 *
 * close-tickets.mjs <gateway> <agent key> <how many>
 */
import { setTimeout as sleep } from 'node:timers/promises';

const [gateway, agentKey, count] = process.argv.slice(2);

async function close(ticket) {
  for (;;) {
    const answer = await fetch(`${gateway}/v1/tools/tickets.close`, {
      method: 'POST',
      headers: { authorization: `Bearer ${agentKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ id: `ticket-${ticket}` }),
    }).catch(() => undefined);
    const body = await answer?.json().catch(() => undefined);
    if (answer?.status === 200 && body !== undefined) return body;
    await sleep(20);
  }
}

for (let ticket = 1; ticket <= Number(count); ticket += 1) {
  const { txn, result } = await close(ticket);
  process.stdout.write(`closed ${ticket} ${txn} ${JSON.stringify(result)}\n`);
}
process.stdout.write('finished\n');
