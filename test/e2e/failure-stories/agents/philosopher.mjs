/**
 * One of the five dining philosophers. It needs the forks on both sides to eat. In every fifth round it dies right after it
 * has asked for the forks, whether it holds them or not.
 *
 * philosopher.mjs <gateway> <agent key> <which> <first round> <rounds>
 */
import http from 'node:http';

const [gateway, agentKey, which, first, rounds] = process.argv.slice(2);
const me = Number(which);

/** Uses node:http, because the process starts two hundred times and `fetch` takes longer to load. */
function eat(round) {
  const headers = {
    authorization: `Bearer ${agentKey}`,
    'content-type': 'application/json',
    'idempotency-key': `philosopher-${me}-${round}`,
    prefer: 'wait=55',
  };
  const forks = [String(me), String((me + 1) % 5)];
  return new Promise((resolve, reject) => {
    const request = http.request(`${gateway}/v1/tools/table.eat`, { method: 'POST', headers }, (response) => {
      let body = '';
      response.setEncoding('utf8').on('data', (chunk) => {
        body += chunk;
      });
      response.on('end', () => resolve({ status: response.statusCode, body }));
    });
    request.on('error', reject);
    request.end(JSON.stringify({ me, round, forks }));
  });
}

for (let round = Number(first); round < Number(rounds); round += 1) {
  const eating = eat(round);
  if ((round + me) % 5 === 0 && round > Number(first)) {
    await new Promise((resolve) => setTimeout(resolve, 15));
    process.kill(process.pid, 'SIGKILL');
  }
  const { status, body } = await eating;
  if (status !== 200) throw new Error(`round ${round}: ${status} ${body}`);
  process.stdout.write(`ate ${round}\n`);
}
