/**
 * An agent that deletes records by their ids, many at once, through every given gateway.
 *
 * delete-records.mjs <agent key> <prefix> <how many> <gateway>...
 */
const [agentKey, prefix, count, ...gateways] = process.argv.slice(2);

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

const counts = new Map();
let next = 0;
const work = async () => {
  while (next < Number(count)) {
    const n = next++;
    let answer = await remove(n);
    // The gateway answers that nothing was sent, so the call is repeated.
    while (answer === '503 unavailable') answer = await remove(n);
    counts.set(answer, (counts.get(answer) ?? 0) + 1);
  }
};
await Promise.all(Array.from({ length: 50 }, work));
for (const [answer, times] of [...counts].sort()) process.stdout.write(`${answer} ${times}\n`);
process.stdout.write('done\n');
