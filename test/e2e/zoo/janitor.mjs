/**
 * An agent that tidies up: it deletes records by their ids, many at once, through every gateway it knows, and does not wonder.
 *
 * janitor.mjs <agent key> <prefix> <how many> <gateway>...
 */
const [agentKey, prefix, many, ...gateways] = process.argv.slice(2);

async function remove(n) {
  const id = `${prefix}-${n}`;
  const response = await fetch(`${gateways[n % gateways.length]}/v1/tools/store.delete_record`, {
    method: 'POST',
    headers: { authorization: `Bearer ${agentKey}`, 'content-type': 'application/json', 'idempotency-key': id },
    body: JSON.stringify({ id }),
  });
  const body = await response.json();
  return `${response.status} ${body.code ?? body.state}`;
}

const told = new Map();
let next = 0;
const hand = async () => {
  while (next < Number(many)) {
    const n = next++;
    let answer = await remove(n);
    // Whoever is told that nothing was sent, and to ask again, asks again.
    while (answer === '503 unavailable') answer = await remove(n);
    told.set(answer, (told.get(answer) ?? 0) + 1);
  }
};
await Promise.all(Array.from({ length: 50 }, hand));
for (const [answer, times] of [...told].sort()) process.stdout.write(`${answer} ${times}\n`);
process.stdout.write('done\n');
